"""A CPU without g++ and without a fast BLAS for mlx, where NumPy computes."""

import pytest
from mlx_bulk.kernels import backend, native


def remove_compiler(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(native, "library", lambda: None)
    patch.setattr(backend, "prepare", lambda: backend.Blas(None, note="the slow one inside mlx"))
