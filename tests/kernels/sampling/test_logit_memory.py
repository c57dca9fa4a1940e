"""Tests the memory that is reserved for reading logits: on the path of Metal and CUDA, what mlx takes for it at most."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw, logit_memory
from mlx_bulk.kernels.sampling.draw import launch
from mlx_bulk.kernels.sampling.parameters import Parameters

ROWS, VOCABULARY = 16, 20_000


def sampled(temperature: float = 0.8, top_k: int = 0, top_p: float = 1.0, typical_p: float | None = None) -> Parameters:
    def of_rows(value: float) -> np.ndarray:
        return np.full(ROWS, value, np.float32)

    off = of_rows(0), of_rows(1), of_rows(0), of_rows(0)
    given = Parameters(of_rows(temperature), np.full(ROWS, top_k, np.int32), of_rows(top_p), *off, of_rows(0.5))
    return given if typical_p is None else replace(given, typical_p=of_rows(typical_p))


FIGURES: dict[str, Callable[[mx.array], object]] = {
    "scored": lambda x: logprobs.score(x, np.zeros(ROWS, np.int32)),
    "scored with statistics": lambda x: logprobs.score(x, np.zeros(ROWS, np.int32), top=5, stats=True),
    "greedy": lambda x: launch(x, sampled(0)).read(),
    "drawn": lambda x: launch(x, sampled(top_k=50, top_p=0.9), top=5).read(),
    "typical": lambda x: launch(x, sampled(typical_p=0.9)).read(),
    "rollout": lambda x: launch(x, sampled(top_p=0.9), top=5, stats=True, tempered=True, kept=True).read(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_what_is_computed_from_logits_fits_what_is_reserved(monkeypatch: pytest.MonkeyPatch, name: str):
    for module in (draw, logprobs, logit_memory):
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)
    states, head = mx.random.normal((ROWS, 8)), mx.random.normal((8, VOCABULARY))
    mx.eval(states, head)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    FIGURES[name](states @ head)
    assert mx.get_peak_memory() - before <= logit_memory.ARRAYS * 4 * ROWS * VOCABULARY


def test_the_reserve_grows_with_the_rows_that_decode(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logit_memory, "on_cpu_path", lambda: False)
    scored = logit_memory.rows(logit_memory.read_at_once(), 150_000)
    assert logit_memory.workspace(150_000, 1) == logit_memory.ARRAYS * 4 * 150_000 * scored
    assert logit_memory.workspace(150_000, 1000) == logit_memory.ARRAYS * 4 * 150_000 * 1000
