"""Tests the settings of quantized keys and values: values, contradictions, jobs that have none, and a run's identity."""

from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.identity import identity
from mlx_bulk.configs.load import load_config, load_eval
from mlx_bulk.configs.schema import JobConfig
from mlx_bulk.configs.sweep import SweepConfig

JOBS: dict[str, dict[str, Any]] = {
    "generate": {"prompt": {"text": "x"}},
    "rollout": {"prompt": {"text": "x"}},
    "score": {"score": {"text": "x"}},
    "embed": {"prompt": {"text": "x"}},
    "classify": {"prompt": {"text": "x"}},
}


def loaded(batch: dict[str, Any], job: str = "generate") -> JobConfig:
    values = {"job": job, "model": "demo", "data": "rows.jsonl", "output": "out", "batch": batch, **JOBS[job]}
    config = load_config(values)
    assert isinstance(config, JobConfig)
    return config


def refusal(batch: dict[str, Any], job: str = "generate") -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(batch, job)
    return str(caught.value)


@pytest.mark.parametrize("job", ["generate", "rollout"])
@pytest.mark.parametrize("bits", [4, 8, None])
def test_jobs_that_generate_take_the_bits(job: str, bits: int | None):
    batch = loaded({"kv_bits": bits}, job).batch
    assert (batch.kv_bits, batch.kv_group, batch.kv_start) == (bits, 64, 0)


def test_group_and_start_go_with_the_bits():
    batch = loaded({"kv_bits": 4, "kv_group": 32, "kv_start": 100}).batch
    assert (batch.kv_bits, batch.kv_group, batch.kv_start) == (4, 32, 100)


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        ({"kv_bits": 6}, "batch.kv_bits: found 6; expected 4, 8 or null"),
        ({"kv_bits": "8"}, 'batch.kv_bits: found "8"; expected 4, 8 or null'),
        ({"kv_bits": 8, "kv_group": 16}, "batch.kv_group: found 16; expected 32, 64 or 128"),
        ({"kv_bits": 8, "kv_start": -1}, "batch.kv_start: found -1; expected a whole number of at least 0"),
        ({"kv_group": 32}, "batch.kv_group: found 32, which does nothing without batch.kv_bits; set that to 8 or 4, or remove it"),
        (
            {"kv_start": 9, "kv_bits": None},
            "batch.kv_start: found 9, which does nothing without batch.kv_bits; set that to 8 or 4, or remove it",
        ),
        ({"kv_bit": 8}, "batch.kv_bit: no such key; did you mean batch.kv_bits?"),
    ],
)
def test_what_is_refused_is_told_with_its_cure(batch: dict[str, Any], line: str):
    assert line in refusal(batch)


@pytest.mark.parametrize("job", ["score", "embed", "classify"])
def test_jobs_without_completions_refuse_the_bits(job: str):
    line = f"batch.kv_bits: found 8; expected null, since a job of the kind {job} generates no completions"
    assert line in refusal({"kv_bits": 8}, job)


def test_an_evaluation_has_no_such_key(tmp_path: Path):
    path = tmp_path / "eval.yaml"
    path.write_text("{job: eval, model: demo, tasks: [x], output: out, batch: {kv_bits: 8}}")
    with pytest.raises(ConfigError, match=r"batch\.kv_bits: no such key; it belongs to job: generate"):
        load_eval(path)


def test_the_bits_are_part_of_a_runs_identity_where_they_are_set():
    keys = {"batch.kv_bits": 8, "batch.kv_group": 32, "batch.kv_start": 5}
    quantized = identity(loaded({"kv_bits": 8, "kv_group": 32, "kv_start": 5}))
    assert quantized == identity(loaded({})) | keys


def test_a_sweep_takes_the_bits_as_a_key_of_its_cells(tmp_path: Path):
    base = {"job": "generate", "model": "demo", "data": "rows.jsonl", **JOBS["generate"]}
    sweep = load_config({"job": "sweep", "base": base, "matrix": {"batch.kv_bits": [None, 8, 4]}, "output": str(tmp_path)})
    assert isinstance(sweep, SweepConfig)
    assert [cell.config.batch.kv_bits for cell in cells(sweep, "here")] == [None, 8, 4]
