"""What counts as the same run, and what as the same input grown."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.drift import covered_rows, identity_drift, inputs_drift

OLD, MORE = b'{"a":1}\n{"a":2}\n', b'{"a":3}\n'


def source(path: Path, content: bytes, appendable: bool = True) -> dict[str, Any]:
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return {"path": str(path), "bytes": len(content), "sha256": digest, "rows": len(content.splitlines()), "appendable": appendable}


def inputs(*sources: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
    return {"limit": limit, "sources": list(sources)}


def test_identity_lines_name_key_and_both_values():
    stored = {"sampling.temperature": 1.0, "sampling.stop": ["a"], "weights": "sha256:ab", "gone": None}
    now = {"sampling.temperature": 0.7, "sampling.stop": ("a",), "weights": "sha256:ab", "new": "é"}
    assert identity_drift(stored, now) == [
        "gone: the run has null, the config now says nothing",
        'new: the run has nothing, the config now says "é"',
        "sampling.temperature: the run has 1.0, the config now says 0.7",
    ]


def test_a_reference_that_comes_or_goes_is_one_line():
    alone: dict[str, Any] = {"job": "score", "score.reference": None}
    beside: dict[str, Any] = {"job": "score", "score.reference.dtype": "auto", "score.reference.model.weights": "ab"}
    assert identity_drift(alone, beside) == ["score.reference: the run has none, the config now says one"]
    assert identity_drift(beside, alone) == ["score.reference: the run has one, the config now says none"]
    assert identity_drift(beside, beside | {"score.reference.dtype": "float32"}) == [
        'score.reference.dtype: the run has "auto", the config now says "float32"'
    ]


def test_long_values_are_cut():
    (line,) = identity_drift({"prompt.text": "a" * 5000}, {"prompt.text": "b"})
    assert len(line) < 300


def test_equal_content_at_another_path_is_equal(tmp_path: Path):
    assert inputs_drift(inputs(source(tmp_path / "a", OLD)), inputs(source(tmp_path / "b", OLD))) == []


def test_the_input_may_grow_at_its_end(tmp_path: Path):
    path, other = tmp_path / "a.jsonl", source(tmp_path / "b.jsonl", MORE)
    stored = inputs(source(path, OLD))
    assert inputs_drift(stored, inputs(source(path, OLD + MORE))) == []
    assert inputs_drift(stored, inputs(source(path, OLD), other)) == []
    assert inputs_drift(stored, inputs(source(path, OLD + MORE), other)) == []


@pytest.mark.parametrize("content", [OLD.replace(b"1", b"9") + MORE, OLD[:-1], MORE + OLD, b""])
def test_any_other_content_is_drift(tmp_path: Path, content: bytes):
    path = tmp_path / "a.jsonl"
    (line,) = inputs_drift(inputs(source(path, OLD)), inputs(source(path, content)))
    assert line.startswith(f"data.path: source 1 was {path} (2 rows, 16 bytes, sha256 ")


def test_text_glued_to_an_unfinished_last_line_is_drift(tmp_path: Path):
    path = tmp_path / "a.txt"
    stored = inputs(source(path, b"one\ntwo"))
    assert inputs_drift(stored, inputs(source(path, b"one\ntwo and\nthree\n"))) != []
    assert inputs_drift(stored, inputs(source(path, b"one\ntwo\nthree\n"))) == []


def test_only_the_last_source_may_grow_and_only_in_line_formats(tmp_path: Path):
    a, b = tmp_path / "a", tmp_path / "b"
    stored = inputs(source(a, OLD), source(b, OLD))
    assert inputs_drift(stored, inputs(source(a, OLD + MORE), source(b, OLD)))[0].startswith("data.path: source 1 was")
    assert inputs_drift(inputs(source(a, OLD, False)), inputs(source(a, OLD + MORE, False))) != []
    assert inputs_drift(stored, inputs(source(a, OLD))) == [f"data.path: source 2, {b}, is gone"]


def test_the_limit_may_be_longer_not_shorter(tmp_path: Path):
    whole = source(tmp_path / "a", OLD)
    assert covered_rows(inputs(whole, limit=1)) == 1
    assert inputs_drift(inputs(whole, limit=1), inputs(whole, limit=2)) == []
    assert inputs_drift(inputs(whole, limit=1), inputs(whole)) == []
    assert inputs_drift(inputs(whole), inputs(whole, limit=5)) == []
    assert inputs_drift(inputs(whole), inputs(whole, limit=1)) == ["data.limit: the run covers 2 rows, the config now says 1"]


def test_a_source_behind_the_limit_counts_when_it_is_reached(tmp_path: Path):
    first, second = source(tmp_path / "a", OLD), source(tmp_path / "b", MORE)
    short, whole = inputs(first, limit=2), inputs(first, second)
    assert inputs_drift(short, whole) == []
    assert inputs_drift(whole, short) == ["data.limit: the run covers 3 rows, the config now says 2"]
