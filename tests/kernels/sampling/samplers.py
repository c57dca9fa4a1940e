"""The three ways to draw (specification, NumPy, library) as one function each, and parameters of rows for them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.kernels.sampling import draw as sampling
from mlx_bulk.kernels.sampling.draw import Drawn
from mlx_bulk.kernels.sampling.grammar_mask import Allowed
from mlx_bulk.kernels.sampling.logits_processors import Edits
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.kernels.sampling.xtc import XTC
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

from ...oracle import distribution

Floats = NDArray[np.float32]
Way = Callable[[Floats, Parameters], Drawn]


def by_specification(x: Floats, p: Parameters) -> Drawn:
    """Draws as Metal and CUDA do, with all figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "on_cpu_path", lambda: False)
        return sampling.launch(mx.array(x), p, tempered=True, kept=True).read()[0]


def by_library(x: Floats, p: Parameters) -> Drawn:
    """Draws as a CPU does."""
    return sampling.launch(mx.array(x), p, tempered=True, kept=True).read()[0]


def by_numpy(x: Floats, p: Parameters) -> Drawn:
    """Draws as a CPU without a compiler does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        return by_library(x, p)


WAYS = [
    pytest.param(by_specification, id="reference"),
    pytest.param(by_numpy, id="numpy"),
    pytest.param(by_library, id="library", marks=pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")),
]


def parameters(
    rows: list[Sampling], uniforms: Any, edits: Edits | None = None, allowed: Allowed | None = None, coins: Any = 0.0
) -> Parameters:
    """One entry a row. ``coins``: XTC's numbers; 0 is below every probability."""

    def floats(name: str) -> Floats:
        return np.array([getattr(s, name) for s in rows], np.float32)

    coin = np.broadcast_to(np.asarray(coins, np.float32), len(rows))
    return Parameters(
        floats("temperature"),
        np.array([s.top_k for s in rows], np.int32),
        floats("top_p"),
        floats("min_p"),
        floats("repetition_penalty"),
        floats("presence_penalty"),
        floats("frequency_penalty"),
        np.asarray(uniforms, np.float32),
        edits,
        allowed,
        floats("typical_p") if any(s.typical_p < 1 for s in rows) else None,
        XTC(floats("xtc_probability"), floats("xtc_threshold"), coin) if any(s.xtc_probability for s in rows) else None,
    )


def decided(x: NDArray[np.floating], s: Sampling) -> bool:
    """Returns False where a set ends within rounding of what a filter asks for: the contract does not say which tokens stay."""
    near = [("", 1.0), *([("temperature", 1 - 1e-5), ("temperature", 1 + 1e-5)] if s.typical_p < 1 else [])]
    near += [(name, f) for name in ("top_p", "typical_p") for f in (1 - 1e-5, 1 + 1e-5) if getattr(s, name) < 1]
    near += [(name, f) for name in ("min_p", "xtc_threshold") for f in (1 - 1e-5, 1 + 1e-5) if getattr(s, name) * f <= 1]
    sets = [distribution(x.tolist(), replace(s, **{name: getattr(s, name) * f}) if name else s) > 0 for name, f in near]
    return all(np.array_equal(one, sets[0]) for one in sets)
