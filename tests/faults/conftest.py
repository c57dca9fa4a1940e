"""The process that children are forked from, and what the tiny jobs come to when nothing breaks them off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..checkpoints import write_checkpoint
from .children import Children
from .tiny_runs import JOBS, TinyRun, parts


@pytest.fixture(scope="session")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    model = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
    with Children(model, tmp_path_factory.mktemp("children")) as children:
        yield children


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, children: Children) -> dict[str, dict[str, bytes]]:
    """The parts of each job, run without a break."""
    found: dict[str, dict[str, bytes]] = {}
    for job in JOBS:
        run = TinyRun(tmp_path_factory.mktemp("whole") / job, children)
        run.write(job)
        ended = run.start()
        assert ended.code == 3, ended.stderr
        found[job] = parts(run.path)
    return found


@pytest.fixture
def run(tmp_path: Path, children: Children) -> TinyRun:
    return TinyRun(tmp_path, children)
