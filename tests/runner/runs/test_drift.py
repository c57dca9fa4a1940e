"""Tests which starts count as the same run, and which inputs as the same input grown."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.core.shard_layout import covered_rows
from mlx_bulk.runner.runs import drift
from mlx_bulk.runner.runs.drift import differences, inputs_content, refusal, require_adoptable, values_at

OLD, MORE = b'{"a":1}\n{"a":2}\n', b'{"a":3}\n'


def source(path: Path, content: bytes, appendable: bool = True) -> dict[str, Any]:
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return {
        "path": str(path),
        "format": "jsonl",
        "codec": None,
        "bytes": len(content),
        "sha256": digest,
        "rows": len(content.splitlines()),
        "appendable": appendable,
    }


def inputs(*sources: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
    return {"limit": limit, "sources": list(sources)}


def identity_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [str(difference) for difference in drift.identity_drift(stored, now)]


def inputs_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [str(difference) for difference in drift.inputs_drift(stored, now)]


def test_identity_lines_name_key_and_both_values():
    stored = {"sampling.temperature": 1.0, "sampling.stop": ["a"], "weights": "sha256:ab", "gone": None}
    now = {"sampling.temperature": 0.7, "sampling.stop": ("a",), "weights": "sha256:ab", "new": "é"}
    assert identity_drift(stored, now) == [
        "gone: the run has null, the config now says nothing",
        'new: the run has nothing, the config now says "é"',
        "sampling.temperature: the run has 1.0, the config now says 0.7",
    ]


def test_fewer_samples_can_be_adopted_and_more_can_not():
    batch = {"identity": {"sampling.n": 1, "data.format": "openai"}, "inputs": inputs(), "config": {}}
    several = {"identity": {"sampling.n": 2, "data.format": "openai"}, "inputs": inputs(), "config": {}}
    assert "a request may have several prompts, and the number of a sample says which of them it answers" in refusal(
        differences(several, batch), ("sampling.n",)
    )
    first, fewer, more = ({"identity": {"sampling.n": n}, "inputs": inputs(), "config": {}} for n in (2, 1, 4))
    assert refusal(differences(first, fewer), ()).endswith("--adopt sampling.n goes on.")
    for adopted in ((), ("sampling.n",)):
        said = refusal(differences(first, more), adopted)
        assert "sampling.n: the run has 2, the config now says 4; some finished rows have only 2 of 4 samples, and would keep them" in said
        assert "--adopt" not in said


def test_a_reference_that_comes_or_goes_is_one_line():
    alone: dict[str, Any] = {"job": "score", "score.reference": None}
    beside: dict[str, Any] = {"job": "score", "score.reference.dtype": "auto", "score.reference.model.weights": "ab"}
    assert identity_drift(alone, beside) == ["score.reference: the run has none, the config now says one"]
    assert identity_drift(beside, alone) == ["score.reference: the run has one, the config now says none"]
    assert identity_drift(beside, beside | {"score.reference.dtype": "float32"}) == [
        'score.reference.dtype: the run has "auto", the config now says "float32"'
    ]


def test_fingerprints_and_machines_are_not_in_the_config():
    was, now = "ab" * 32, "cd" * 32
    stored = {"model.adapter": "none", "model.weights": was, "prompt.chat_template": None, "mlx": "0.32.2", "column row": "int64"}
    assert identity_drift(
        stored,
        {"model.adapter": now, "model.weights": now, "prompt.chat_template": f"sha256 {was}", "mlx": "0.33", "column row": "int32"},
    ) == [
        'column row: the run has "int64", the input now gives "int32"',
        'mlx: the run has "0.32.2", this machine now has "0.33"',
        'model.adapter: the run has "none", now it is sha256 cdcdcdcdcdcd',
        "model.weights: the run has sha256 abababababab, now it is sha256 cdcdcdcdcdcd",
        "prompt.chat_template: the run has null, now it is sha256 abababababab",
    ]


def test_the_variable_that_chooses_the_kernels_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLX_BULK_CPU", "avx512")
    monkeypatch.delenv("MLX_BULK_BLAS", raising=False)
    assert identity_drift({"kernels": "a for amx", "BLAS": "x"}, {"kernels": "b for avx512", "BLAS": "y"}) == [
        'BLAS: the run has "x", this machine now has "y"',
        'kernels: the run has "a for amx", this machine now has "b for avx512" by MLX_BULK_CPU=avx512',
    ]


def refused(stored: dict[str, Any], now: dict[str, Any], *adopted: str) -> str:
    return refusal(drift.identity_drift(stored, now), adopted)


def test_the_ways_out_name_what_can_be_adopted():
    ways = "Go back to what the run has, choose another --output, or start over with --overwrite (this removes the run's results)"
    two = refused({"a.b": 1, "c": 2}, {"a.b": 2, "c": 3})
    assert two.endswith(f"\n{ways}; where you vouch that the finished rows hold all the same, --adopt a.b --adopt c goes on.")
    assert refused({"a.b": 1, "c": 2}, {"a.b": 2, "c": 3}, "c").count("\n  ") == 1
    assert refused({"batch.rows_per_shard": 4}, {"batch.rows_per_shard": 5}).endswith(f"\n{ways}.")
    # A change that brings other columns is no way to go on with those that are there.
    both = refused({"data.keep": "all", "column input.a": "int64"}, {"data.keep": "none"})
    assert both.endswith(f"\n{ways}.")
    assert "column" not in both
    assert "  column input.a: " in refused({"data.keep": "all", "column input.a": "int64"}, {"data.keep": "none"}, "data.keep")
    assert "(rows that were added may not change the columns" in refused({}, {"column input.a": "int64"})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sampling.sed", "is no key of this run's identity; did you mean sampling.seed"),
        ("zzz", "is no key of this run's identity; expected one of data.path, model.weights, sampling.seed"),
        ("batch.rows_per_shard", "cannot be adopted: the parts that are there are cut by it"),
        ("data.limit", "cannot be adopted: a run that covers more rows cannot be made shorter"),
        ("column row", "cannot be adopted: the parts that are there have the columns they have"),
    ],
)
def test_keys_that_cannot_be_adopted_are_refused_with_the_reason(key: str, said: str):
    known = ["sampling.seed", "model.weights", "batch.rows_per_shard", "column row"]
    require_adoptable(["sampling.seed", "data.path"], known)
    with pytest.raises(ConfigError) as caught:
        require_adoptable(["sampling.seed", key], known)
    assert str(caught.value).startswith(f"--adopt {key}: {said}")


def test_values_at_a_key_are_its_own_and_those_below_it():
    run = {"identity": {"score.reference": None, "score.reference.dtype": "auto", "score.references": 1}, "inputs": {"limit": 1}}
    assert values_at("score.reference", run) == {"score.reference": None, "score.reference.dtype": "auto"}
    assert values_at("data.path", run) == {"data.path": {"limit": 1}}


def test_long_values_are_cut():
    (line,) = identity_drift({"prompt.text": "a" * 5000}, {"prompt.text": "b"})
    assert len(line) < 300


def test_equal_content_at_another_path_is_equal(tmp_path: Path):
    assert inputs_drift(inputs(source(tmp_path / "a", OLD)), inputs(source(tmp_path / "b", OLD))) == []


def test_equal_bytes_read_in_another_way_are_drift(tmp_path: Path):
    """A file that was renamed from .jsonl to .txt gives other rows."""
    stored = inputs(source(tmp_path / "a", OLD))
    for change in ({"format": "text"}, {"codec": "gzip"}):
        now = inputs(source(tmp_path / "a", OLD) | change)
        (line,) = inputs_drift(stored, now)
        assert " is now " in line
        assert inputs_content(stored) != inputs_content(now)
    assert inputs_drift(stored, inputs(source(tmp_path / "a", OLD + MORE) | {"format": "text"})) != []
    assert inputs_content(stored) == inputs_content(inputs(source(tmp_path / "b", OLD)))


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
    assert line.startswith(f"data.path: source 1 was {path} (jsonl, 2 rows, 16 bytes, sha256 ")


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


def test_a_source_after_the_limit_counts_once_it_is_reached(tmp_path: Path):
    first, second = source(tmp_path / "a", OLD), source(tmp_path / "b", MORE)
    short, whole = inputs(first, limit=2), inputs(first, second)
    assert inputs_drift(short, whole) == []
    assert inputs_drift(whole, short) == ["data.limit: the run covers 3 rows, the config now says 2"]
