"""Tests runs whose completions are held to grammars, from the config to the records and what the other commands say of them."""

import json
from pathlib import Path
from typing import Any

import mlx_bulk
import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from mlx_bulk.jobs.cli.main import cli

from ..jobs.support.bench import Bench
from ..jobs.support.rollout_runs import roll

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"b": {"type": "boolean"}, "a": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
DRAWN = {"max_tokens": 40, "temperature": 1.5, "n": 2}
OWN: list[dict[str, Any]] = [
    {"q": "one", "own": {"choice": ["yes", "no"]}},
    {"q": "two", "own": None},
    {"q": "three", "own": json.dumps(PERSON)},
    {"q": "four", "own": {"regex": "(?=a)b"}},
    {"q": "five", "own": {"json_schema": {"not": {"type": "string"}}}},
    {"q": "six", "own": {"choice": []}},
    {"q": "seven", "own": {"json_schema": {"$ref": "#"}}},
    {"q": "eight", "own": {"grammar": 'start: "a" /[b-d]{3}/'}},
    {"q": "nine", "own": {"regex": "a" * 5_000_000}},
]


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.output


def test_a_schema_in_a_file_holds_each_completion(bench: Bench) -> None:
    (bench.root / "schema.json").write_text(json.dumps(PERSON))
    done = bench.run(sampling=DRAWN, structured={"json_schema": str(bench.root / "schema.json")})
    assert done.code == 0, done.stderr
    whole = [record for record in done.records if record["grammar_complete"]]
    assert len(whole) > 5
    for record in whole:
        value = json.loads(record["completion"])
        Draft202012Validator(PERSON).validate(value)
        assert list(value) == ["b", "a"]
    assert all(record["grammar_complete"] for record in done.records if record["finish_reason"] == "stop")
    summary = json.loads((done.output / "summary.json").read_text())["statistics"]
    assert (summary["grammar_complete"], summary["grammar_incomplete"]) == (len(whole), len(done.records) - len(whole))
    session = json.loads((done.output / "sessions.jsonl").read_text().splitlines()[0])
    assert "llguidance" in json.dumps(session)
    (bench.root / "schema.json").write_text(json.dumps({**PERSON, "properties": dict(reversed(PERSON["properties"].items()))}))
    again = bench.run(sampling=DRAWN, structured={"json_schema": str(bench.root / "schema.json")})
    assert again.code == 4
    assert "structured.json_schema: the run has sha256" in again.stderr


def test_each_row_may_bring_its_own(bench: Bench) -> None:
    done = bench.run(rows=OWN, sampling=DRAWN, structured={"column": "own"}, data={"keep": "none"})
    assert done.code == 3
    texts = {(record["row"], record["sample"]): record for record in done.records}
    assert sorted({row for row, _ in texts}) == [0, 1, 2, 7]
    assert {texts[0, 0]["completion"], texts[0, 1]["completion"]} <= {"yes", "no"}
    assert texts[1, 0]["grammar_complete"] is None
    assert texts[7, 0]["completion"][0] == "a"
    errors = {error["row"]: error["message"] for error in done.errors}
    assert {error["stage"] for error in done.errors} == {"grammar"}
    assert "look-around" in errors[3]
    assert '["not"]; change it, or set structured.unsupported: relax' in errors[4]
    assert "choice: found []; expected a list of strings, at least one" in errors[5]
    assert "a $ref leads back to itself" in errors[6]
    assert "has 5.0 MB of text; expected at most 4 MB" in errors[8]


@pytest.mark.slow
def test_rows_without_a_grammar_are_as_in_a_run_without_any(bench: Bench) -> None:
    rows = [{"q": f"row {i}", "own": None if i % 2 else {"regex": "[a-z]{2,6}"}} for i in range(6)]
    same: dict[str, Any] = {"sampling": DRAWN, "batch": {"deterministic": True, "rows": 4}, "data": {"keep": "none"}}
    held = bench.run(rows=rows, structured={"column": "own"}, **same).records
    free = bench.run("--overwrite", rows=rows, **same).records
    assert [record["grammar_complete"] is None for record in held] == [record["row"] % 2 == 1 for record in held]
    for mine, other in zip(held, free, strict=True):
        if mine["row"] % 2:
            assert {name: mine[name] for name in other} == {name: other[name] for name in other}


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        ({"regex": "(?=a)b"}, "structured.regex: this regular expression cannot be enforced: invalid regex: look-around"),
        ({"json_schema": {"not": {}}}, 'structured.json_schema: this JSON schema cannot be enforced: Unimplemented keys: ["not"]'),
        ({"json_schema": "none.json"}, "structured.json_schema: none.json cannot be read"),
        ({"grammar": "start: other"}, 'structured.grammar: this Lark grammar cannot be enforced: at 1(8): unknown name: "other"'),
        ({"column": "owm"}, "structured.column: no row has a column 'owm'. Did you mean 'own'?"),
    ],
)
def test_a_config_with_a_wrong_grammar_starts_nothing(bench: Bench, structured: dict[str, Any], words: str) -> None:
    done = bench.run(rows=OWN, structured=structured)
    assert done.code in (2, 5)
    assert words in done.stderr
    assert not (done.output / "results").exists()


def test_a_row_that_ignores_eos_has_no_grammar(bench: Bench) -> None:
    rows = [{"q": "a", "forever": True}, {"q": "b", "forever": False}]
    done = bench.run(rows=rows, sampling={**DRAWN, "columns": {"ignore_eos": "forever"}}, structured={"choice": ["yes", "no"]})
    assert [error["row"] for error in done.errors] == [0]
    assert "ignore_eos" in done.errors[0]["message"]


def test_what_a_relaxed_schema_leaves_out_shows_in_grammar_complete(bench: Bench) -> None:
    unique = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    sampling = {"max_tokens": 30, "temperature": 1.5, "n": 6}
    done = bench.run(sampling=sampling, structured={"json_schema": unique, "unsupported": "relax", "whitespace": "compact"})
    stopped = [record for record in done.records if record["finish_reason"] == "stop"]
    assert {record["grammar_complete"] for record in stopped} == {True, False}
    for record in stopped:
        assert record["grammar_complete"] == (len(set(json.loads(record["completion"]))) == 2)


def test_verify_leaves_out_what_is_under_a_grammar(bench: Bench) -> None:
    assert bench.run(sampling=DRAWN, structured={"regex": "[a-z]{5,9}"}).code == 0
    code, output = command("verify", "--rescore", str(bench.root / "run"))
    assert code == 0, output
    assert (
        "left out: 10 records: sampled_logprobs: under a grammar, or with reasoning whose end was forced; --replay works them out" in output
    )
    assert "logprobs" in output
    code, output = command("verify", "--replay", str(bench.root / "run"))
    assert code == 0, output
    assert "sampled_logprobs" in output


def test_rollouts_may_be_held_too(bench: Bench) -> None:
    done = roll(bench, sampling={"max_tokens": 12, "n": 3, "top_k": 8}, logprobs={"kept": True}, structured={"regex": "[a-f]{2,5}"})
    assert done.code == 0, done.stderr
    assert all(record["completion_mask"] == [1] * len(record["completion_ids"]) for record in done.records)
    assert any(record["grammar_complete"] for record in done.records)
    code, output = command("verify", "--rescore", str(bench.root / "run"))
    assert code == 0, output
    assert "under a grammar" not in output  # the kept ids are those that the grammar allowed too


def test_plan_counts_grammars(bench: Bench) -> None:
    path = bench.write_config([*OWN[:3], OWN[0]], structured={"column": "own"})
    code, output = command("plan", str(path))
    assert code == 0, output
    assert "grammars  2 distinct grammars for 3 rows; each is compiled once" in output


def test_report_shows_the_share_that_is_whole(bench: Bench) -> None:
    assert bench.run(sampling=DRAWN, structured={"choice": ["yes", "no"]}).code == 0
    assert command("report", str(bench.root / "run"))[0] == 0
    page = (bench.root / "run" / "report.html").read_text()
    assert "Grammar complete" in page
    assert "0 of 10 held to a grammar are not whole" in page


def test_deterministic_runs_are_bound_to_the_librarys_version(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.run(sampling=DRAWN, structured={"choice": ["yes", "no"]}, batch={"deterministic": True, "rows": 2}).code == 0
    stored = yaml.safe_load((bench.root / "run" / "run.json").read_text())
    assert "llguidance" in stored["identity"]


def test_a_model_in_memory_answers_under_a_grammar(model: Path) -> None:
    loaded = mlx_bulk.load(model)
    for _ in range(2):
        results = loaded.generate(["Is it so?", "Or not?"], structured={"choice": ["yes", "no"]}, max_tokens=8)
        assert all(result.outputs[0].text in ("yes", "no") and result.outputs[0].grammar_complete for result in results)
    free = loaded.generate(["Is it so?"], max_tokens=4)[0].outputs[0]
    assert free.grammar_complete is None
    assert free.sampled_logprobs is None
