"""A tiny model for all tests of the jobs, and a bench of its own for each."""

from pathlib import Path

import pytest

from ..checkpoints import write_checkpoint
from .bench import Bench


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def bench(tmp_path: Path, model: Path) -> Bench:
    return Bench(tmp_path, model)
