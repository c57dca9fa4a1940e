"""Tests the library's draws against NumPy's: the same ids pass the filters, and the same tokens are drawn."""

from collections.abc import Sequence

import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.kernels.sampling import draw as sampling
from mlx_bulk.kernels.sampling.draw import Drawn
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.kernels.sampling.xtc import XTC
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

Floats = NDArray[np.float32]
FILTERS = {
    "none": (0, 1.0, 0.0),
    "one token": (1, 1.0, 0.0),
    "top_k": (40, 1.0, 0.0),
    "top_k of most": (700, 1.0, 0.0),
    "top_p": (0, 0.95, 0.0),
    "a small top_p": (0, 0.3, 0.0),
    "nearly all": (0, 1 - 2.0**-20, 0.0),
    "min_p": (0, 1.0, 0.02),
    "top_p of top_k": (40, 0.8, 0.0),
    "all": (300, 0.9, 1e-4),
    "typical_p": (0, 1.0, 0.0, 0.6),
    "typical_p of min_p": (0, 1.0, 1e-3, 0.9),
    "xtc": (0, 1.0, 0.0, 1.0, 0.01),
    "every filter": (500, 0.99, 1e-5, 0.95, 0.02),
}


def parameters(logits: Floats, filters: Sequence[float], temperature: float = 0.8, seed: int = 1) -> Parameters:
    n, (top_k, top_p, min_p, typical_p, threshold) = len(logits), (*filters, *(1.0, np.inf)[len(filters) - 3 :])
    off = np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32)
    heat, mass, least, typical, top = (np.full(n, value, np.float32) for value in (temperature, top_p, min_p, typical_p, threshold))
    return Parameters(
        heat, np.full(n, top_k, np.int32), mass, least, *off, np.random.default_rng(seed).random(n, np.float32), typical_p=typical,
        xtc=XTC(np.isfinite(top).astype(np.float32), top, np.zeros(n, np.float32)),
    )  # fmt: skip


def both(logits: Floats, p: Parameters) -> tuple[Drawn, Drawn]:
    found = sampling.on_cpu(logits, p, kept=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        return found, sampling.on_cpu(logits, p, kept=True)


def assert_same(logits: Floats, p: Parameters) -> None:
    found, truth = both(logits, p)
    assert found.kept is not None
    assert truth.kept is not None
    for one, other in zip(found.kept, truth.kept, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found.ids, truth.ids)
    np.testing.assert_allclose(found.sampled, truth.sampled, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("v", [1, 15, 16, 17, 255, 256, 1000, 50_257])
@pytest.mark.parametrize("name", FILTERS)
def test_the_ids_left_are_those_of_numpy(name: str, v: int):
    rng = np.random.default_rng(v)
    logits = (3 * rng.standard_normal((6, v))).astype(np.float32)
    logits[1] = np.round(logits[1])  # ties, at the cut too
    logits[2, rng.random(v) < 0.9] = -np.inf
    logits[2, rng.integers(v)] = 1
    logits[3] *= 20  # most lie beyond the bins
    logits[4] = 0
    logits[5] = np.linspace(0, 1e-4, v)  # all in one bin
    assert_same(logits, parameters(logits, FILTERS[name]))


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 1.0, 2.0, 50.0])
def test_at_any_temperature(temperature: float):
    logits = np.random.default_rng(3).standard_normal((8, 3000)).astype(np.float32)
    for filters in FILTERS.values():
        assert_same(logits, parameters(logits, filters, temperature))


def test_rows_with_and_without_filters_and_greedy_ones():
    logits = np.random.default_rng(4).standard_normal((5, 999)).astype(np.float32)
    p = parameters(logits, FILTERS["all"])
    p.temperature[1] = 0
    p.top_k[2], p.top_p[2], p.min_p[2] = 0, 1, 0
    logits[3] = np.nan
    found, truth = both(logits, p)
    assert found.kept is not None
    assert [None if ids is None else len(ids) for ids in found.kept[:3]] == [len(truth.kept[0]), 1, None]  # pyright: ignore[reportOptionalSubscript, reportArgumentType]
    np.testing.assert_array_equal(found.ids[[0, 1, 2, 4]], truth.ids[[0, 1, 2, 4]])
    np.testing.assert_array_equal(np.isnan(found.sampled), [False, False, False, True, False])


def test_logits_that_are_a_part_of_others():
    logits = np.random.default_rng(5).standard_normal((8, 2000)).astype(np.float32)[::2, 3:1500]
    assert_same(logits, parameters(logits, FILTERS["top_p"]))


@pytest.mark.parametrize("v", [8, 512])
def test_a_uniform_on_a_border_draws_the_next_token(v: int):
    logits = np.zeros((v, v), np.float32)
    p = parameters(logits, FILTERS["none"])
    p.uniforms = (np.arange(v) / v).astype(np.float32)
    assert both(logits, p)[0].ids.tolist() == list(range(v))
