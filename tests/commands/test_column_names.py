"""Tests columns whose names are no identifiers, in every setting that names a column."""

from ..jobs.support.bench import Bench

ROWS = [{"The id": {"no.": 4}, "Question Text": "abc", "max. tokens": 3}, {"The id": {"no.": 5}, "Question Text": "b", "max. tokens": 2}]


def test_odd_names_serve_as_prompt_key_sampling_and_kept_columns(bench: Bench) -> None:
    done = bench.run(
        rows=ROWS,
        data={"path": str(bench.root / "rows.jsonl"), "key": "The id.no.", "keep": ["max. tokens"]},
        prompt={"text": '{{ row["Question Text"] }}'},
        sampling={"columns": {"max_tokens": "max. tokens"}, "ignore_eos": True},
    )
    assert done.code == 0, done.stderr
    kept = [(record["key"], record["prompt"], record["completion_tokens"], record["input"]) for record in done.records]
    assert kept == [("4", "abc", 3, {"max. tokens": 3}), ("5", "b", 2, {"max. tokens": 2})]


def test_odd_names_serve_in_scores(bench: Bench) -> None:
    rows = [{"the answer": "a", "a.b": {"c. d": ["a", "b"]}, "of which": "x", "Q?": "q"}]
    settings = {"choices": "a.b.c. d", "label": '{{ row["the answer"] }}', "group_by": "of which"}
    done = bench.score(rows=rows, score=settings, prompt={"text": '{{ row["Q?"] }}'})
    assert (done.code, done.errors) == (0, []), done.stderr
