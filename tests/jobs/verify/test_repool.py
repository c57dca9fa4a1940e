"""Tests ``verify --rescore`` on runs of pooling models: correct runs pass, other vectors fail; ``--replay`` is refused."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.jobs.verify import repool
from mlx_bulk.jobs.verify.vector_diff import VectorComparison, vectors_as_json, vectors_as_text
from mlx_bulk.runner.pool_engine.pooler import Pooler

from ..support.bench import Bench
from .test_verify import verify

ROWS = [{"q": "word " * (1 + row % 9) + str(row)} for row in range(30)]
EMBED: dict[str, Any] = {"job": "embed", "prompt": {"text": "{{ q }}"}, "embed": {"pooling": "mean"}}
CLASSIFY: dict[str, Any] = {"job": "classify", "prompt": {"text": "{{ q }}"}, "classify": {"true_token": "e", "false_token": "o"}}


def made(bench: Bench, job: dict[str, Any], **sections: Any) -> Path:
    done = bench.score(rows=ROWS, **job, **sections)
    assert done.code == 0, done.stderr
    return done.output


@pytest.mark.parametrize(("job", "bound"), [(EMBED, "1e-05 of a vector's length"), (CLASSIFY, "1e-04 a logit")], ids=["embed", "classify"])
def test_the_vectors_of_a_run_are_computed_again(bench: Bench, job: dict[str, Any], bound: str, monkeypatch: pytest.MonkeyPatch):
    run = made(bench, job, batch={"rows": 7, "rows_per_shard": 4})
    found = verify(run, "--rescore")
    assert found.exit_code == 0, found.output
    assert "complete and sound" in found.stdout
    assert "30 records: " in found.stdout
    assert "to the bit" in found.stdout or f"within float32's bounds ({bound})" in found.stdout
    monkeypatch.setattr(repool, "SHARDS", 3)
    monkeypatch.setattr(repool, "ROWS", 6)
    assert "6 records of 30 rows, spread evenly: " in verify(run, "--rescore").stdout
    refused = verify(run, "--replay")
    assert refused.exit_code != 0
    assert f"is a run of job: {job['job']}, which decodes nothing; --rescore computes some of its vectors again" in refused.stderr


def test_other_vectors_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    run = made(bench, EMBED)
    real = Pooler._vectors  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Pooler, "_vectors", lambda self, batch: real(self, batch) * 1.001)
    found = verify(run, "--rescore", "--json")
    assert found.exit_code == 5
    anew = json.loads(found.stdout)["anew"]
    assert (anew["passed"], anew["records"], anew["other"], anew["stored_as"]) == (False, 30, 30, "float")
    assert anew["max"] > 1e-4


def test_another_model_is_refused(bench: Bench, tmp_path: Path):
    run = made(bench, EMBED)
    stored = json.loads((run / "run.json").read_text())
    weights = Path(stored["config"]["model"]["path"]) / "model.safetensors"
    held = weights.read_bytes()
    try:
        loaded: Any = mx.load(str(weights))
        moved = {name: array * 1.5 for name, array in loaded.items()}
        mx.eval(moved)
        mx.save_safetensors(str(weights), moved)
        found = verify(run, "--rescore")
        assert found.exit_code != 0
        assert "model.weights is not what the run was made with" in found.stderr
    finally:
        weights.write_bytes(held)


def test_other_types_than_float32_have_bounds_of_their_own():
    vector = np.array([0.6, -0.8], np.float32)
    exact, half, steps = (VectorComparison("embedding", kind, False, True, 1) for kind in ("float", "halffloat", "int8"))
    for comparison in (exact, half, steps):
        comparison.add(vector, vector + np.float32(3e-4))
    assert (exact.passed, half.passed, steps.passed) == (False, True, True)
    assert "beyond float32's bounds" in vectors_as_text(exact)
    assert "no bounds are promised for numbers stored as int8" in vectors_as_text(steps)
    exact.add(vector, vector[:1])
    assert vectors_as_json(exact)["max"] is None
    assert vectors_as_text(VectorComparison("logits", "float", True, True, 0)).startswith("nothing to compare")
    rounded = VectorComparison("logits", "float", True, False, 1)
    rounded.add(vector, vector + 1)
    assert rounded.passed
    assert "no bounds are promised in half precision (in float32: 1e-04 a logit)" in vectors_as_text(rounded)
