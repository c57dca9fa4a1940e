"""What tests of several kernels share."""

import pytest

from .without_compiler import remove_compiler


@pytest.fixture
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without g++ and without a fast BLAS for mlx."""
    remove_compiler(monkeypatch)
