"""A tiny model for all tests of the jobs, and a bench of its own for each."""

from pathlib import Path
from typing import Any

import pytest

from ..checkpoints import loaded, write_checkpoint
from .support.bench import Bench


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def network(model: Path) -> Any:
    return loaded(model).network


@pytest.fixture
def bench(tmp_path: Path, model: Path) -> Bench:
    return Bench(tmp_path, model)
