"""What every test shares: the fast BLAS, which is opened before any test imports mlx, and the rule for the oracle tests.

Those run where their libraries are, and always where CI asks for them.
"""

import importlib.util
import os

import pytest
from mlx_bulk.kernels import backend

backend.prepare()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips an oracle test without torch or lm-eval; with MLX_BULK_ORACLE=1 it fails instead."""
    if item.get_closest_marker("oracle") is None or os.environ.get("MLX_BULK_ORACLE") == "1":
        return
    for library in ("torch", "lm_eval", "accelerate"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; pip install -e '.[oracle]'")
