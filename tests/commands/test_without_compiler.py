"""Without g++ and without a system's BLAS, NumPy computes in place of our kernels and mlx's slow products: the same figures."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mlx_bulk.kernels import backend
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import read_results

from ..encoder_checkpoints import tiny_bert, tiny_modernbert
from ..jobs.support.bench import Bench

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or backend.device_name() != "cpu", reason="a Linux CPU alone lacks a fast BLAS"),
]
TEXTS = ["once upon a time there was a cat", "a", "two dogs and three cats cost more than the price of a good day " * 3]
JOBS: dict[str, dict[str, Any]] = {
    "generate": {"prompt": {"text": "{{ t }}"}, "sampling": {"max_tokens": 8, "temperature": 0}, "logprobs": {"prompt": True}},
    "score": {"score": {"text": "{{ t }}"}},
    "embed": {"prompt": {"text": "{{ t }}"}, "embed": {"pooling": "mean", "max_length": 40}},
}
# No library of the system can be opened, and NumPy's takes a compiler. So mlx is left with the slow one inside its wheel.
HIDE = """
import os, sys
os.environ["MLX_BULK_BLAS"] = "off"
import mlx_bulk.kernels
del os.environ["MLX_BULK_BLAS"]
from mlx_bulk.kernels import backend
backend.OPENBLAS, backend.MKL, backend._blas = (), (), None
"""
COMMAND = "from mlx_bulk.jobs.cli.main import cli; cli(sys.argv[1:])"


def figures(folder: Path, name: str) -> list[np.ndarray]:
    """The numbers of each record."""
    columns = {"generate": ("logprobs", "prompt_logprobs"), "score": ("token_logprobs",), "embed": ("embedding",)}[name]
    found = [row[column] for batch in read_results(folder) for row in batch.to_pylist() for column in columns]
    return [np.array([number for number in np.atleast_1d(each) if number is not None], np.float64) for each in found]


@pytest.mark.parametrize(("name", "encoder"), [("generate", None), ("score", None), ("embed", tiny_bert), ("embed", tiny_modernbert)])
def test_each_job_gives_the_same_figures_by_numpy(bench: Bench, name: str, encoder: Any):
    model = bench.model if encoder is None else encoder(bench.root / "encoder")
    (bench.root / "rows.jsonl").write_text("".join(json.dumps({"t": text}) + "\n" for text in TEXTS))
    told, outputs = "", [bench.root / "kernels", bench.root / "numpy"]
    for output, before in zip(outputs, ("import sys\n", HIDE), strict=True):
        config = {"job": name, "model": {"path": str(model)}, "data": {"path": str(bench.root / "rows.jsonl")}, **JOBS[name]}
        path = bench.root / "config.yaml"
        path.write_text(yaml.safe_dump(config | {"output": {"path": str(output)}}))
        environment = {"PATH": str(bench.root)} if before == HIDE else {}
        command = [sys.executable, "-c", before + COMMAND, "run", str(path), "--no-supervised"]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told = done.stderr
    assert "no g++ is on the PATH" in told
    assert "the slow one inside mlx, as g++ is not here" in told
    start = next(iter(read_lines(RunPaths(outputs[1]).sessions)))
    assert {"attention", "linear"} <= set(start["substitutes"])  # NumPy computes both
    for mine, theirs in zip(*(figures(output, name) for output in outputs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)
        assert len(mine)
