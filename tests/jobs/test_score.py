"""Scoring from end to end on a tiny model: what records hold, against naive forwards of the same tokens."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ..checkpoints import BOS, CONTEXT, EOS, LLAMA, loaded, logprobs, write_checkpoint
from ..runner.small_tokenizers import demo
from .bench import Bench, Done, Record

TOLERANCE = 1e-4  # a token, in float32: batches and windows have other shapes than one forward (the contract's)
LONG = "The king is dead, and the queen is in the town; café 東京 🙂. " * 4
DOCUMENTS = ["", "a", "é", "a\r\nb\r\n", LONG, "<|endoftext|>The king", "The king is dead."]


def score_all(network: Any, fed: list[int], targets: list[int]) -> list[float]:
    """Logprobs of ``targets``, which are what follows the last of ``fed``: one forward of one window."""
    first = len(fed) - len(targets)
    found = logprobs(network, fed)
    return [float(found[first + i, target]) for i, target in enumerate(targets)]


def rolling(ids: list[int], context: int) -> Iterator[tuple[list[int], list[int]]]:
    """lm-eval's windows of ``ids``, of which the first is the prefix: what is fed, and what is scored."""
    done = 1
    while done < len(ids):
        end = min(len(ids), done + context)
        yield ids[max(0, end - 1 - context) : end - 1] if done > 1 else ids[: end - 1], ids[done:end]
        done = end


def naive(network: Any, ids: list[int], context: int) -> list[float | None]:
    """Logprobs of all tokens but the first, which is null."""
    found: list[float | None] = [None] * min(1, len(ids))
    for fed, targets in rolling(ids, context):
        found += score_all(network, fed, targets)
    return found


def assert_close(found: list[float | None], expected: list[float | None]) -> None:
    assert [value is None for value in found] == [value is None for value in expected]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    np.testing.assert_allclose([a for a, _ in pairs], [b for _, b in pairs], rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def network(model: Path) -> Any:
    return loaded(model).network


def documents(bench: Bench, texts: list[str], score: Record | None = None, *options: str, **sections: Any) -> Done:
    rows = [{"id": i, "t": text} for i, text in enumerate(texts)]
    return bench.score("-q", *options, rows=rows, score={"text": "{{ t }}", **(score or {})}, **sections)


# ------------------------------------------------------------------------------------------------------------ documents


@pytest.mark.parametrize("context", ["auto", 7, 1])
@pytest.mark.parametrize("prefix", ["bos", "none"])
def test_documents_are_what_naive_forwards_say(bench: Bench, network: Any, context: int | str, prefix: str) -> None:
    done = documents(bench, DOCUMENTS, {"context": context, "prefix": prefix})
    assert done.code == 0
    width = CONTEXT if context == "auto" else int(context)
    spread: list[float] = []
    for text, record in zip(DOCUMENTS, done.records, strict=True):
        plain = demo().encode_text(text).ids.tolist()
        ids = [BOS, *plain] if prefix == "bos" and plain[:1] != [BOS] else plain
        expected = naive(network, ids, width)
        assert record["token_ids"] == ids
        assert_close(record["token_logprobs"], expected)
        scored = [value for value in record["token_logprobs"] if value is not None]
        assert record["scored_tokens"] == len(scored) == max(0, len(ids) - 1)
        assert record["sum_logprob"] == (math.fsum(scored) if scored else None)
        assert (record["bytes"], record["chars"], record["truncated"]) == (len(text.encode()), len(text), False)
        spread += scored
    assert np.std(spread) > 1  # else a wrong target would hide within the tolerance
    assert len(done.records[4]["token_ids"]) > CONTEXT  # it takes more than one window whatever the context


def test_counts_of_empty_short_and_broken_up_documents(bench: Bench) -> None:
    done = documents(bench, DOCUMENTS)
    names = ("scored_tokens", "bytes", "scored_bytes", "words", "chars")
    found = [tuple(record[name] for name in names) for record in done.records]
    assert found[:4] == [(0, 0, 0, 1, 0), (1, 1, 1, 1, 1), (2, 2, 2, 1, 1), (6, 6, 6, 3, 6)]
    assert found[5] == (2, 21, 8, 2, 21)
    assert done.records[0]["sum_logprob"] is None
    assert (done.records[0]["token_ids"], done.records[0]["token_logprobs"], done.records[0]["text_offset"]) == ([BOS], [None], [0])
    assert done.records[2]["text_offset"] == [0, 0, 0]  # both bytes of é start where it does


def test_strided_windows_see_what_the_guide_shows_them(bench: Bench, network: Any) -> None:
    done = documents(bench, [LONG], {"context": 12, "windows": "strided", "stride": 5})
    ids = done.records[0]["token_ids"]
    expected: list[float | None] = [None, *score_all(network, ids[:11], ids[1:12])]
    for begin in range(5, len(ids) - 7, 5):
        end = min(begin + 12, len(ids))
        expected += score_all(network, ids[begin : end - 1], ids[begin + 7 : end])
    assert_close(done.records[0]["token_logprobs"], expected)


def test_bos_before_every_window_counts_as_fed_and_is_recorded_once(bench: Bench, network: Any) -> None:
    done = documents(bench, [LONG], {"context": 12, "bos_every_window": True})
    ids = done.records[0]["token_ids"]
    assert ids.count(BOS) == 1
    expected: list[float | None] = [None, *score_all(network, ids[:12], ids[1:13])]
    while len(expected) < len(ids):
        at = len(expected)
        end = min(at + 11, len(ids))
        expected += score_all(network, [BOS, *ids[end - 12 : end - 1]], ids[at:end])
    assert_close(done.records[0]["token_logprobs"], expected)


def test_gemma_gets_bos_before_every_window(tmp_path: Path) -> None:
    gemma = write_checkpoint(tmp_path / "gemma", {**LLAMA, "model_type": "gemma", "tie_word_embeddings": True})
    bench = Bench(tmp_path, gemma)
    found = [
        documents(bench, [LONG], {"context": 12, **how}, "--overwrite").records[0]["sum_logprob"]
        for how in ({}, {"bos_every_window": True}, {"bos_every_window": False}, {"prefix": "none"})
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_eos_in_a_gemmas_place_of_bos_stands_before_the_first_window_alone(tmp_path: Path, network: Any) -> None:
    gemma = write_checkpoint(tmp_path / "gemma", {**LLAMA, "model_type": "gemma", "tie_word_embeddings": True})
    bench = Bench(tmp_path, without_bos(gemma, tmp_path / "bare"))
    score = {"context": 12, "prefix": "bos_or_eos"}
    found, plain, every = (
        documents(bench, [LONG], {**score, **how}, "--overwrite").records[0]["sum_logprob"]
        for how in ({}, {"bos_every_window": False}, {"bos_every_window": True})
    )
    assert found == plain != every


def test_eos_stands_before_the_first_token_of_a_model_without_bos(bench: Bench, tmp_path: Path, network: Any) -> None:
    bare = without_bos(bench.model, tmp_path / "bare")
    done = documents(Bench(tmp_path, bare), ["The king is"], {"prefix": "bos_or_eos"})
    ids = [EOS, *demo().encode_text("The king is").ids.tolist()]
    assert done.records[0]["token_ids"] == ids
    assert_close(done.records[0]["token_logprobs"], naive(network, ids, CONTEXT))


def test_a_first_token_that_is_not_scored_is_said(bench: Bench, tmp_path: Path) -> None:
    bare = Bench(tmp_path, without_bos(bench.model, tmp_path / "bare"))
    done = bare.score(rows=[{"t": "The king"}], score={"text": "{{ t }}"})
    assert "the first token of each document is not scored (prefix: bos_or_eos puts EOS there)" in done.stderr
    assert done.records[0]["scored_bytes"] == 5


def without_bos(model: Path, folder: Path) -> Path:
    """The same model, whose tokenizer has no BOS."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": None}))
    return folder


# ---------------------------------------------------------------------------------------------------------- the columns

FRONT = {"row": "int64", "key": "string", "input": "struct<id: int64, t: large_string>"}
TOKENS = {"token_ids": "list<item: int32>", "token_logprobs": "list<item: float>", "text_offset": "list<item: int32>"}
SCORED = {"scored": "list<item: bool>"}
TOP = {"top_ids": "list<item: list<item: int32>>", "top_logprobs": "list<item: list<item: float>>"}
STATS = {"ranks": "list<item: int32>", "entropies": "list<item: float>"}
COMPARED = dict.fromkeys(("kls", "delta_ps"), "list<item: float>") | {
    "agreements": "list<item: bool>",
    "reference_logprobs": "list<item: float>",
}
COUNTS = {"sum_logprob": "double", "scored_tokens": "int32"} | dict.fromkeys(("bytes", "scored_bytes", "words", "chars"), "int64")
END = {"truncated": "bool"}
PROMPT = {"prompt": {"text": "{{ t }}"}}
CHOICE_COLUMNS = {
    "prompt_tokens": "int32",
    "choice_token_ids": "list<item: list<item: int32>>",
    "choice_token_logprobs": "list<item: list<item: float>>",
    "choice_logprobs": "list<item: double>",
    "choice_tokens": "list<item: int32>",
    "choice_bytes": "list<item: int32>",
    "choice_chars": "list<item: int32>",
    "choice_is_greedy": "list<item: bool>",
    "prediction": "int32",
    "label": "int32",
    "correct": "bool",
    "truncated": "bool",
}


@pytest.mark.parametrize(
    ("sections", "columns"),
    [
        ({"score": {"text": "{{ t }}"}}, {**FRONT, **TOKENS, **COUNTS, **END}),
        (
            {"score": {"text": "{{ t }}", "group_by": "t"}, "data": {"keep": "none"}},
            {"row": "int64", "key": "string", "group": "large_string", **TOKENS, **COUNTS, **END},
        ),
        (
            {"score": {"text": "{{ t }}"}, "logprobs": {"top": 2, "stats": True}},
            {**FRONT, **TOKENS, **TOP, **STATS, **COUNTS, **END},
        ),
        ({"score": {"text": "{{ t }}", "reference": "model"}}, {**FRONT, **TOKENS, **COMPARED, **COUNTS, **END}),
        ({"score": {"completion": " is"}, **PROMPT}, {**FRONT, **TOKENS, **SCORED, **COUNTS, **END, "is_greedy": "bool"}),
        (
            {"score": {"messages": "m"}},
            {**FRONT, "input": "struct<id: int64, m: list<item: struct<role: string, content: string>>>"}
            | {**TOKENS, **SCORED, **COUNTS, **END},
        ),
    ],
)
def test_columns_and_types(bench: Bench, sections: dict[str, Any], columns: dict[str, str]) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    row = {"id": 1, "m": messages} if "messages" in sections["score"] else {"id": 1, "t": "The king"}
    if "reference" in sections["score"]:
        sections["score"]["reference"] = str(bench.model)
    rows = bench.write_rows([row])
    done = bench.score("-q", rows=[row], **{**sections, "data": {"path": str(rows), **sections.get("data", {})}})
    assert done.code == 0
    assert [(field.name, str(field.type)) for field in done.table.schema] == list(columns.items())


def test_columns_of_choices(bench: Bench) -> None:
    done = bench.score("-q", rows=[{"t": "The", "c": [" king", " is"]}], score={"choices": "c"}, **PROMPT)
    names = {"row": "int64", "key": "string", "input": "struct<t: large_string, c: list<item: string>>", **CHOICE_COLUMNS}
    assert [(field.name, str(field.type)) for field in done.table.schema] == list(names.items())


def test_figures_stand_where_tokens_are_scored(bench: Bench, network: Any) -> None:
    rows = [{"q": "The king", "a": " is dead"}, {"q": "A", "a": "b"}]
    done = bench.score("-q", rows=rows, prompt={"text": "{{ q }}"}, score={"completion": "{{ a }}"}, logprobs={"top": 3, "stats": True})
    for record in done.records:
        truth = logprobs(network, record["token_ids"])
        for at, scored in enumerate(record["scored"]):
            figures = [record[name][at] for name in ("token_logprobs", "top_ids", "top_logprobs", "ranks", "entropies")]
            if not scored:
                assert figures == [None] * 5
                continue
            p, target = truth[at - 1], record["token_ids"][at]
            order = np.lexsort((np.arange(len(p)), -p))
            assert figures[1] == order[:3].tolist()
            assert figures[3] == 1 + order.tolist().index(target)
            np.testing.assert_allclose(figures[2], p[order[:3]], rtol=0, atol=TOLERANCE)
            assert figures[4] == pytest.approx(
                -(np.exp(p) * p).sum(), abs=TOLERANCE * 10
            )  # Σ over 2,048 tokens of up to 1e-4 each, weighted


# ---------------------------------------------------------------------------------------------------------- completions


def completions(bench: Bench, pairs: list[tuple[str, str]], *options: str, **sections: Any) -> Done:
    rows = [{"q": prompt, "a": completion} for prompt, completion in pairs]
    return bench.score("-q", *options, rows=rows, **{"prompt": {"text": "{{ q }}"}, "score": {"completion": "{{ a }}"}, **sections})


PAIRS = [("The king", " is dead."), ("Answer:\n", "B"), ("", "The king"), ("A longer prompt, with café in it", "!")]


def test_completions_are_what_one_forward_says(bench: Bench, network: Any) -> None:
    done = completions(bench, PAIRS)
    assert done.code == 0
    for (prompt, completion), record in zip(PAIRS, done.records, strict=True):
        ids = demo().encode(prompt + completion).ids.tolist()
        n = max(1, len(demo().encode(prompt.rstrip()).ids))
        assert record["token_ids"] == ids
        assert record["scored"] == [at >= n for at in range(len(ids))]
        truth = logprobs(network, ids)
        expected = [None if at < n else float(truth[at - 1, token]) for at, token in enumerate(ids)]
        assert_close(record["token_logprobs"], expected)
        assert record["scored_tokens"] == len(ids) - n
        assert record["sum_logprob"] == math.fsum(x for x in record["token_logprobs"] if x is not None)
        assert record["is_greedy"] == all(truth[at - 1].argmax() == ids[at] for at in range(n, len(ids)))
    moved = done.records[1]
    assert [demo().decode(np.array([i], np.int32)) for i, s in zip(moved["token_ids"], moved["scored"], strict=True) if s] == ["\n", "B"]
    assert (moved["bytes"], moved["scored_bytes"], moved["chars"]) == (2, 2, 2)


def test_the_most_likely_completion_is_greedy(bench: Bench, network: Any) -> None:
    pairs: list[tuple[str, str]] = []
    for word in ("The", "A", "Is", "king", "my", "To", "1", "and", "we", "Sir"):
        ids = demo().encode(word).ids
        best = int(logprobs(network, ids.tolist())[-1].argmax())
        text = demo().decode(np.array([best], np.int32))
        if text.strip() and demo().encode(word + text).ids.tolist() == [*ids.tolist(), best]:
            pairs.append((word, text))
    assert pairs
    assert [record["is_greedy"] for record in completions(bench, pairs).records] == [True] * len(pairs)


def test_rows_that_cannot_be_scored_are_set_aside(bench: Bench) -> None:
    done = completions(bench, [("The king", ""), ("The ki", "ng"), ("The", " king")])
    assert done.code == 3
    assert [(error["row"], error["stage"]) for error in done.errors] == [(0, "tokenize"), (1, "tokenize")]
    assert "the completion is empty" in done.errors[0]["message"]
    assert "nothing is left to score" in done.errors[1]["message"]
    assert [record["row"] for record in done.records] == [2]


@pytest.mark.parametrize("too_long", ["error", "truncate_left", "truncate_right"])
def test_a_prompt_that_is_too_long(bench: Bench, network: Any, too_long: str) -> None:
    prompt, completion = "The king is dead and the queen", " is in the town"
    done = completions(
        bench, [(prompt, completion)], prompt={"text": "{{ q }}", "too_long": too_long}, score={"completion": "{{ a }}", "context": 9}
    )
    if too_long == "error":
        assert (done.code, done.errors[0]["stage"]) == (3, "too_long")
        return
    record, whole = done.records[0], demo().encode(prompt + completion).ids.tolist()
    assert record["token_ids"] == ([BOS, *whole[-9:]] if too_long == "truncate_left" else [*whole[:5], *whole[-5:]])
    assert (record["truncated"], record["scored_tokens"], record["scored_bytes"]) == (True, 5, len(completion))
    assert_close(record["token_logprobs"][5:], list(score_all(network, record["token_ids"][:-1], record["token_ids"][5:])))


# -------------------------------------------------------------------------------------------------------------- choices

QUESTIONS: list[Record] = [
    {"q": "The king is", "c": [" dead", " in the town", " dead"], "l": 1},
    {"q": "Who?\n", "c": ["A", "B", "C", "é"], "l": "B"},
    {"q": "", "c": ["The king"], "l": None},
]


def test_choices_are_completions_of_one_prompt(bench: Bench) -> None:
    done = bench.score("-q", rows=QUESTIONS, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "l"})
    assert done.code == 0
    pairs = [(row["q"], choice) for row in QUESTIONS for choice in row["c"]]
    alone = iter(completions(bench, pairs, "--overwrite").records)
    for row, record in zip(QUESTIONS, done.records, strict=True):
        for at, choice in enumerate(row["c"]):
            one = next(alone)
            scored = [i for i, s in enumerate(one["scored"]) if s]
            assert record["choice_token_ids"][at] == [one["token_ids"][i] for i in scored]
            assert_close(record["choice_token_logprobs"][at], [one["token_logprobs"][i] for i in scored])
            assert record["choice_logprobs"][at] == math.fsum(record["choice_token_logprobs"][at])
            assert record["choice_is_greedy"][at] == one["is_greedy"]
            assert (record["choice_tokens"][at], record["prompt_tokens"]) == (len(scored), one["scored"].index(True))
            assert (record["choice_bytes"][at], record["choice_chars"][at]) == (len(choice.encode()), len(choice))
        assert record["prediction"] == int(np.argmax(record["choice_logprobs"]))
    assert [record["label"] for record in done.records] == [1, 1, None]
    assert [record["correct"] for record in done.records] == [done.records[0]["prediction"] == 1, done.records[1]["prediction"] == 1, None]


def test_of_equal_choices_the_first_is_predicted(bench: Bench) -> None:
    done = bench.score(
        "-q", rows=[{"q": "The", "c": [" king"] * 3}], prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "{{ 2 }}"}
    )
    record = done.records[0]
    assert len(set(record["choice_logprobs"])) == 1
    assert (record["prediction"], record["label"], record["correct"]) == (0, 2, False)


def test_a_choice_is_greedy_when_each_of_its_tokens_is(bench: Bench, network: Any) -> None:
    ids = demo().encode("The king").ids
    best = demo().decode(np.array([int(logprobs(network, ids.tolist())[-1].argmax())], np.int32))
    done = bench.score(
        "-q", rows=[{"q": "The king", "c": [best, best + " xyz", " zz"]}], prompt={"text": "{{ q }}"}, score={"choices": "c"}
    )
    record, flags = done.records[0], []
    for chosen in record["choice_token_ids"]:
        truth = logprobs(network, [*ids.tolist(), *chosen])
        flags.append([bool(truth[len(ids) + at - 1].argmax() == token) for at, token in enumerate(chosen)])
    assert (all(flags[0]), flags[1][0], all(flags[1]), any(flags[2])) == (True, True, False, False)
    assert record["choice_is_greedy"] == [True, False, False]


def test_choices_and_labels_of_a_csv(bench: Bench) -> None:
    path = bench.root / "rows.csv"
    path.write_text('q,c,l\nThe king is,"["" dead"", "" in the town""]",1\n', encoding="utf-8")
    prompt = {"text": "{{ q }}"}
    done = bench.score("-q", rows=[], data={"path": str(path)}, prompt=prompt, score={"choices": "c", "label": "{{ l }}"})
    assert done.code == 0
    assert (len(done.records[0]["choice_logprobs"]), done.records[0]["label"]) == (2, 1)


@pytest.mark.parametrize("label", ["l", "{{ l }}"])
def test_a_number_is_an_index_in_a_column_and_in_a_template(bench: Bench, label: str) -> None:
    rows: list[Record] = [{"q": "1 + 1 =", "c": [" 1", " 2", " 3"], "l": 1}, {"q": "1 + 1 =", "c": ["1", "2", "3"], "l": 1}]
    done = bench.score("-q", rows=rows, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": label})
    assert [record["label"] for record in done.records] == [1, 1]


def test_choices_of_a_cut_prompt_stand_behind_the_same_tokens(bench: Bench, network: Any) -> None:
    prompt, choices = "The king is dead and the queen", [" is", " is in the town"]
    row = {"q": prompt, "c": choices}
    done = bench.score("-q", rows=[row], prompt={"text": "{{ q }}", "too_long": "truncate_left"}, score={"choices": "c", "context": 9})
    record = done.records[0]
    assert (record["truncated"], record["choice_tokens"], record["prompt_tokens"]) == (True, [1, 5], 8)
    # Room for the longest leaves 5 of the prompt's tokens; the shorter choice stands behind the same ones.
    ids = demo().encode(prompt + choices[0]).ids.tolist()
    truth = logprobs(network, [BOS, *ids[-5:]])
    assert_close(record["choice_token_logprobs"][0], [float(truth[-2, ids[-1]])])


def test_bad_choices_and_labels_cost_their_rows(bench: Bench) -> None:
    rows: list[Record] = [{"q": "The", "c": [" king"], "l": 0}, {"q": "The", "c": [" king"], "l": 7}, {"q": "The", "c": [], "l": 0}]
    rows += [{"q": "The", "c": None, "l": 0}, {"q": "The", "c": ["x", ""], "l": 0}]
    done = bench.score("-q", rows=rows, prompt={"text": "{{ q }}"}, score={"choices": "c", "label": "l"})
    assert [(error["row"], error["stage"]) for error in done.errors] == [(1, "template"), (2, "template"), (3, "template"), (4, "tokenize")]
    assert "the completion at index 1 of 2 is empty" in done.errors[3]["message"]
    assert [record["row"] for record in done.records] == [0]


# ----------------------------------------------------------------------------------------------------------------- chat

CHAT = [
    {"role": "user", "content": "Who is there?"},
    {"role": "assistant", "content": "The king."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "The queen."},
]


def test_a_chat_scores_the_assistants_turns(bench: Bench, network: Any) -> None:
    rows = [{"m": CHAT}, {"m": CHAT[:1]}, {"m": CHAT[:3]}]
    done = bench.score("-q", rows=rows, score={"messages": "m"})
    assert done.code == 0
    turns = demo().encode_turns(CHAT)
    record, ids = done.records[0], turns.prompt.ids.tolist()
    truth = logprobs(network, ids)
    within = [any(start <= at < end for start, end in turns.tokens) for at in range(len(ids))]
    assert (record["token_ids"], record["scored"]) == (ids, within)
    assert_close(record["token_logprobs"], [float(truth[at - 1, ids[at]]) if within[at] else None for at in range(len(ids))])
    assert record["bytes"] == record["scored_bytes"] == len("The king.The queen.")
    nothing = done.records[1]
    assert (nothing["sum_logprob"], nothing["scored_tokens"], any(nothing["scored"])) == (None, 0, False)
    assert done.records[2]["scored_tokens"] == turns.tokens[0][1] - turns.tokens[0][0]


def test_a_chat_template_without_marks_stops_the_job(bench: Bench) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    done = bench.score("-q", rows=[{"m": CHAT}], score={"messages": "m"}, prompt={"chat_template": template})
    assert done.code == 2
    assert "score.messages: prompt.chat_template does not mark the assistant's turns" in done.stderr
    assert "put {% generation %} … {% endgeneration %} around them" in done.stderr


def test_a_turn_that_begins_inside_a_token_costs_the_row(bench: Bench) -> None:
    template = "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    template += "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    rows = [{"m": [{"role": "user", "content": "The ki"}, {"role": "assistant", "content": "ng"}]}]
    done = bench.score("-q", rows=rows, score={"messages": "m"}, prompt={"chat_template": template})
    assert (done.code, done.errors[0]["stage"]) == (3, "tokenize")
    assert "start of the assistant's turn 1" in done.errors[0]["message"]


# ----------------------------------------------------------------------------------------------------------- all of them


def test_groups_are_text_or_json_or_null(bench: Bench) -> None:
    rows = [{"t": "a", "g": {"x": v}} for v in ("b", "1", None)]
    done = bench.score("-q", rows=rows, score={"text": "{{ t }}", "group_by": "g.x"})
    assert [record["group"] for record in done.records] == ["b", "1", None]
    done = bench.score("-q", "--overwrite", rows=[{"t": "a", "g": v} for v in (1, 2)], score={"text": "{{ t }}", "group_by": "g"})
    assert [record["group"] for record in done.records] == ["1", "2"]


def test_a_model_agrees_with_itself(bench: Bench) -> None:
    done = documents(bench, [LONG, "", "The king"], {"reference": str(bench.model)})
    assert done.code == 0
    for record in done.records:
        scored = [value is not None for value in record["token_logprobs"]]
        for name in ("kls", "delta_ps", "agreements", "reference_logprobs"):
            assert [value is not None for value in record[name]] == scored
        present = [i for i, there in enumerate(scored) if there]
        assert all(abs(record["kls"][i]) < 1e-5 and record["agreements"][i] for i in present)  # two float32 sums over 2,048 tokens
        assert [record["reference_logprobs"][i] for i in present] == [record["token_logprobs"][i] for i in present]


def test_the_smaller_of_two_models_contexts_is_used_and_recorded(bench: Bench, tmp_path: Path) -> None:
    small = str(write_checkpoint(tmp_path / "small", {**LLAMA, "max_position_embeddings": 40}))
    done = documents(bench, [LONG], {"reference": small})
    assert done.code == 0
    auto = done.records
    with pa.ipc.open_file(str(done.output / "stats.arrow")) as reader:
        assert reader.read_all().column("context").to_pylist() == [40]
    given = documents(bench, [LONG], {"reference": small, "context": 40}, "--overwrite")
    assert given.records == auto
    refused = documents(bench, [LONG], {"reference": small, "context": 41}, "--overwrite")
    assert (refused.code, "score.context: found 41; expected at most 40, the reference's context" in refused.stderr) == (2, True)
    other = documents(Bench(tmp_path, Path(small)), [LONG], {"reference": str(bench.model), "context": 41})
    assert (other.code, "expected at most 40, the model's context" in other.stderr) == (2, True)


def test_a_template_without_a_column_is_warned_of_once_or_refused(bench: Bench) -> None:
    done = bench.score(rows=[{"t": "a"}, {"t": "b"}], score={"text": "Hello"})
    assert done.stderr.count("score.text: found 'Hello', the same text for each row") == 1
    done = bench.score("--overwrite", rows=[{"t": "a"}], score={"completion": " is"}, prompt={"text": "{{ t }}"})
    assert (done.code, "the same text" in done.stderr) == (0, False)


def test_another_tokenizer_is_refused_and_its_difference_said(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    without_bos(bench.model, other)
    done = documents(bench, ["a"], {"reference": str(other)})
    assert done.code == 5
    assert "its BOS is none and the model's token 0" in done.stderr


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"score": {"text": "{{ t }}", "context": CONTEXT + 1}}, f"score.context: found {CONTEXT + 1}; expected at most {CONTEXT}"),
        (
            {"score": {"text": "{{ t }}", "windows": "strided", "stride": CONTEXT + 1}},
            f"score.stride: found {CONTEXT + 1}; expected at most {CONTEXT}",
        ),
        ({"score": {"text": "{{ x }}"}}, "score.text: no row has a column 'x'"),
        ({"score": {"text": "t"}}, 'score.text: found "t", which is a column\'s name; a template writes it {{ t }}'),
        ({"score": {"completion": "t"}, **PROMPT}, 'score.completion: found "t", which is a column\'s name'),
        ({"score": {"text": "{{ t"}}, "score.text, line 1: the template cannot be parsed"),
        ({"score": {"choices": "x"}, **PROMPT}, "score.choices: no row has a column 'x'"),
        ({"score": {"messages": "x"}}, "score.messages: no row has a column 'x'"),
        ({"score": {"text": "{{ t }}", "group_by": "x"}}, "score.group_by: no row has a column 'x'"),
    ],
)
def test_what_does_not_fit_model_or_rows_is_said_before_anything_runs(bench: Bench, sections: dict[str, Any], said: str) -> None:
    done = bench.score("-q", rows=[{"t": "a"}], **sections)
    assert done.code in (2, 5)
    assert said in done.stderr


def test_a_model_that_states_no_context_needs_one_for_documents(tmp_path: Path) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "max_position_embeddings"}
    bench = Bench(tmp_path, write_checkpoint(tmp_path / "model", config))
    done = documents(bench, [LONG])
    assert (done.code, "score.context: the model's config.json does not say" in done.stderr) == (2, True)
    assert documents(bench, [LONG], {"context": 32}).code == 0


@pytest.mark.parametrize("rows", [1, 4, 32])
def test_batches_and_the_order_of_rows_do_not_show(bench: Bench, network: Any, rows: int) -> None:
    texts = [LONG[:n] for n in (1, 230, 7, 40, 3, 90, 150, 12, 60, 25)]
    order = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]
    found = documents(bench, [texts[i] for i in order], batch={"rows": rows}).records
    for i, record in zip(order, found, strict=True):
        assert_close(record["token_logprobs"], naive(network, demo().encode(texts[i]).ids.tolist(), CONTEXT))


def test_the_same_command_finds_it_done(bench: Bench) -> None:
    first = documents(bench, DOCUMENTS)
    second = bench.command(bench.root / "config.yaml")
    assert second.code == 0
    assert second.last_line.startswith("complete already: 7 of 7 rows")
    assert second.records == first.records
