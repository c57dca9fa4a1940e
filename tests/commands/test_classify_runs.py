"""Tests classifications by the real command: records, statistics, the report, the export, sweeps, and rows that cannot be done."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..encoder_checkpoints import tiny_bert
from ..jobs.report.test_report import reported
from ..jobs.support.bench import Bench, Done
from ..jobs.support.classifiers import write_classifier

WORDS = [
    "the",
    "king",
    "is",
    "dead",
    "and",
    "long",
    "live",
    "the",
    "queen",
    "of",
    "many",
    "days",
    "who",
    "never",
    "said",
    "what",
    "good",
    "it",
    "was",
    "to",
    "be",
]
NAMES = ["good", "bad", "none"]


def texts(count: int, seed: int, longest: int = 20) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


def classify(root: Path, model: Path | str, rows: list[dict[str, Any]], *options: str, **sections: Any) -> Done:
    bench = Bench(root, Path(str(model)))
    config = {
        "job": "classify",
        "model": {"path": str(model)},
        "data": {"path": str(bench.write_rows(rows))},
        "batch": {"rows": 4, "rows_per_shard": 8},
        "output": {"path": str(root / "run")},
        **sections,
    }
    (root / "config.yaml").write_text(yaml.safe_dump(config))
    return bench.command(root / "config.yaml", *options)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("models") / "three", 3, NAMES)


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("models") / "reward")


@pytest.fixture(scope="module")
def labelled(three: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    rng = np.random.default_rng(1)
    rows = [{"t": text, "l": None if at % 5 == 0 else NAMES[rng.integers(3)]} for at, text in enumerate(texts(20, 0))]
    return classify(tmp_path_factory.mktemp("runs"), three, rows, prompt={"text": "{{ t }}"}, classify={"label": "l"})


def test_texts_get_labels_and_their_figures(labelled: Done, three: Path, tmp_path: Path) -> None:
    assert labelled.code == 0, labelled.stderr
    records = labelled.records
    assert [record["label"] for record in records] == [NAMES[int(np.argmax(record["logits"]))] for record in records]
    assert [record["score"] for record in records] == [max(record["logits"]) for record in records]
    rows = [{"t": record["input"]["t"], "l": record["input"]["l"]} for record in reversed(records)]
    alone = classify(tmp_path, three, rows, prompt={"text": "{{ t }}"}, classify={}, batch={"rows": 1}).records
    ours, theirs = (np.array([record["logits"] for record in found]) for found in (records, alone[::-1]))
    assert ours.std() > 1
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    said = json.loads((labelled.output / "summary.json").read_text())["statistics"]
    right = [record["correct"] for record in records if record["correct"] is not None]
    assert (said["labelled"], said["acc"]) == (16, pytest.approx(sum(right) / 16))
    assert {each["label"]: each["rows"] for each in said["labels"]} == dict.fromkeys(NAMES, 0) | Counter(r["label"] for r in records)
    assert "4 rows have no label." in labelled.stderr


@pytest.mark.slow
def test_the_report_shows_labels_scores_and_who_is_taken_for_whom(labelled: Done) -> None:
    page = reported(labelled.output)
    shown = "".join([page.text, *page.scripts])
    for words in ("Labels", "Scores", "Confusion", "Rows by their right label", "least confident", "wrong and sure", "16 rows with a l"):
        assert words in shown, words
    assert "A token's colour" not in page.text
    samples = next(json.loads(script) for script in page.scripts if script.startswith('{"'))["records"]
    assert all(sample["parts"][-1]["text"].startswith("t: ") for sample in samples)
    assert {fact[0] for sample in samples for fact in sample["facts"]} == {"label", "score", "right label", "right", "truncated"}


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_records_are_exported(labelled: Done, form: str, tmp_path: Path) -> None:
    to = tmp_path / f"records.{form}"
    result = CliRunner().invoke(cli, ["export", str(labelled.output), "--to", str(to), "--format", form])
    assert result.exit_code == 0, result.output
    if form == "parquet":
        table = pq.read_table(to)
        assert table.schema.field("logits").type.list_size == 3
        assert table.column("logits").to_pylist() == [record["logits"] for record in labelled.records]
    else:
        assert sum("good" in line or "bad" in line or "none" in line for line in to.read_text().splitlines()) >= 20


# --------------------------------------------------------------------------------------------------------- preferences


def pairs(count: int) -> list[dict[str, Any]]:
    question = [{"role": "user", "content": "How long?"}]
    answers = zip(texts(count, 1), texts(count, 2), strict=True)
    turns = [[[*question, {"role": "assistant", "content": text}] for text in both] for both in answers]
    return [{"chosen": chosen, "rejected": rejected} for chosen, rejected in turns]


PREFERENCE = {"chosen": "chosen", "rejected": "rejected"}


@pytest.mark.parametrize("form", ["preference", "documents"])
def test_scores_are_computed_again_by_verify(reward: Path, tmp_path: Path, form: str) -> None:
    rows = pairs(6) if form == "preference" else [{"q": text, "docs": texts(3, 9)} for text in texts(6, 7)]
    done = classify(tmp_path, reward, rows, classify=PREFERENCE if form == "preference" else {"query": "{{ q }}", "documents": "docs"})
    result = CliRunner().invoke(cli, ["verify", "--rescore", str(done.output)])
    assert result.exit_code == 0, result.output
    assert "anew     6 records" in result.output
    assert "within float32's bounds" in result.output


@pytest.mark.slow
def test_a_preference_file_is_rewarded(reward: Path, tmp_path: Path) -> None:
    rows = pairs(20)
    rows[3]["rejected"] = rows[3]["chosen"]
    rows[4] = {"chosen": [], "rejected": rows[4]["rejected"]}
    done = classify(tmp_path, reward, rows, classify=PREFERENCE)
    assert done.code == 3, done.stderr
    [error] = done.errors
    assert (error["row"], error["stage"]) == (4, "template")
    margins = [record["margin"] for record in done.records]
    assert margins[3] == 0.0
    chats = [{"m": row[side]} for row in rows for side in ("chosen", "rejected") if row["chosen"]]
    again = [record["score"] for record in classify(tmp_path, reward, chats, "--overwrite", prompt={"messages": "m"}).records]
    scores = [record[name] for record in done.records for name in ("chosen_score", "rejected_score")]
    np.testing.assert_allclose(scores, again, atol=2e-5)
    assert np.std(scores) > 1
    assert [record["logits"] for record in done.records] == np.reshape(scores, (-1, 2)).tolist()
    share = (sum(margin > 0 for margin in margins) + 0.5) / 19
    assert f"{100 * share:.0f} ± " in done.stderr
    assert "1 tie counts half." in done.stderr
    page = reported(classify(tmp_path, reward, rows, "--overwrite", classify=PREFERENCE).output)
    assert "Margins" in page.text
    assert "1 tie counted half" in page.text


def test_a_completion_is_the_assistants_turn(reward: Path, tmp_path: Path) -> None:
    rows = [{"q": "How long?", "a": text} for text in texts(6, 1)]
    ours = classify(tmp_path, reward, rows, prompt={"user": "{{ q }}"}, classify={"completion": "{{ a }}"}).records
    theirs = classify(tmp_path, reward, pairs(6), "--overwrite", classify=PREFERENCE).records
    np.testing.assert_allclose([r["score"] for r in ours], [r["chosen_score"] for r in theirs], atol=2e-5)


# ------------------------------------------------------------------------------------------------------------ rerankers


def test_documents_are_ranked_and_long_ones_cut(tmp_path: Path) -> None:
    rows = [{"q": text, "docs": texts(at % 5 + 1, at, longest=40)} for at, text in enumerate(texts(9, 4))]
    rows[2]["docs"] = []
    done = classify(tmp_path, tiny_bert(tmp_path / "cross", 1), rows, classify={"query": "{{ q }}", "documents": "docs"})
    assert (done.code, [error["row"] for error in done.errors]) == (3, [2])
    assert "classify.documents: 'docs' holds []" in done.stderr
    for record in done.records:
        assert sorted(record["ranking"]) == list(range(len(record["input"]["docs"])))
        assert [record["scores"][at] for at in record["ranking"]] == sorted(record["scores"], reverse=True)
        np.testing.assert_allclose(record["scores"], [1 / (1 + math.exp(-logit)) for logit in record["logits"]], rtol=1e-6)
    cut = sum(record["truncated"] for record in done.records)
    assert 0 < cut < 8
    assert f"{cut} row{' was' if cut == 1 else 's were'} cut: longer than classify.max_length or the model allows." in done.stderr
    page = reported(done.output)
    assert "1. document" in "".join(page.scripts)


def test_a_chat_model_answers_yes_or_no(tmp_path: Path) -> None:
    rows = [{"q": text, "l": at % 2} for at, text in enumerate(texts(10, 5))]
    tokens = {"true_token": "y", "false_token": "n", "label": "l"}
    done = classify(tmp_path, "demo", rows, prompt={"user": "Is it so? {{ q }}"}, classify=tokens)
    assert done.code == 0, done.stderr
    assert {record["label"] for record in done.records} <= {"y", "n"}
    assert [record["true_label"] for record in done.records] == ["n", "y"] * 5
    assert [record["label"] == "y" for record in done.records] == [record["logits"][0] > 0 for record in done.records]
    first = score_of_tokens(tmp_path, rows)
    np.testing.assert_allclose([record["logits"][0] for record in done.records], first, atol=1e-5)


def score_of_tokens(root: Path, rows: list[dict[str, Any]]) -> list[float]:
    """The log-odds of the two tokens by a scoring job: a difference of logprobs is one of logits."""
    given = [{**row, "c": ["y", "n"]} for row in rows]
    bench = Bench(root, Path("demo"))
    done = bench.score("--overwrite", rows=given, prompt={"user": "Is it so? {{ q }}"}, score={"choices": "c"})
    return [record["choice_logprobs"][0] - record["choice_logprobs"][1] for record in done.records]


def test_a_sweep_compares_instructions(tmp_path: Path) -> None:
    rows = [{"q": text, "d": "the king is dead"} for text in texts(4, 6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = {
        "job": "classify",
        "model": {"path": str(tiny_bert(tmp_path / "cross", 1))},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "classify": {"query": "{{ q }}", "document": "{{ d }}"},
    }
    config = {"job": "sweep", "base": base, "matrix": {"classify.instruction": ["who ", None]}, "output": {"path": str(tmp_path / "sweep")}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "sweep.yaml"), "--no-supervised"])
    assert result.exit_code == 0, result.output
    assert "mean score" in result.stderr


def test_two_runs_are_compared_by_their_settings_and_figures(three: Path, tmp_path: Path) -> None:
    rows = [{"t": text} for text in texts(6, 8)]
    for name, activation in (("a", "none"), ("b", "softmax")):
        output = {"path": str(tmp_path / name)}
        classify(tmp_path, three, rows, prompt={"text": "{{ t }}"}, classify={"activation": activation}, output=output)
    result = CliRunner().invoke(cli, ["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
    assert "both are runs of classify: settings and statistics are compared, and no documents" in result.output
    for name in ("classify.activation", "mean_score", "share of good"):
        assert name in result.output
    (tmp_path / "b" / "stats.arrow").unlink()
    result = CliRunner().invoke(cli, ["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
