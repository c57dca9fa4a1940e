"""The three ways to draw (specification, NumPy, library) as one function each, and parameters of rows for them."""

from collections.abc import Callable
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
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Way = Callable[[Floats, Parameters], Drawn]


def by_specification(x: Floats, p: Parameters) -> Drawn:
    """Draws as Metal and CUDA do, with all figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "device_name", lambda: "gpu")
        return sampling.draw(mx.array(x), p, tempered=True, kept=True)[0]


def by_library(x: Floats, p: Parameters) -> Drawn:
    """Draws as a CPU does."""
    return sampling.draw(mx.array(x), p, tempered=True, kept=True)[0]


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


def parameters(rows: list[Sampling], uniforms: Any, edits: Edits | None = None, allowed: Allowed | None = None) -> Parameters:
    """One entry a row."""

    def floats(name: str) -> Floats:
        return np.array([getattr(s, name) for s in rows], np.float32)

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
    )
