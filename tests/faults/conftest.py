"""The process that children are forked from, and what the tiny jobs come to when nothing breaks them off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..checkpoints import write_checkpoint
from .children import Children
from .tiny_runs import TinyRun, parts


@pytest.fixture(scope="session")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    model = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
    with Children(model, tmp_path_factory.mktemp("children")) as children:
        yield children


class Whole(dict[str, dict[str, bytes]]):
    """The parts of each job, run without a break when they are first asked for."""

    def __init__(self, folder: Path, children: Children):
        super().__init__()
        self._folder, self._children = folder, children

    def __missing__(self, job: str) -> dict[str, bytes]:
        run = TinyRun(self._folder / job, self._children)
        run.write(job)
        ended = run.start()
        assert ended.code == 3, ended.stderr
        self[job] = parts(run.path)
        return self[job]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, children: Children) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"), children)


@pytest.fixture
def run(tmp_path: Path, children: Children) -> TinyRun:
    return TinyRun(tmp_path, children)
