"""Makes runs that are extended or retried, and lists the records that they must end with."""

from pathlib import Path

import pytest
from mlx_bulk.runner.store.results import read_errors, read_results

from .sessions import content, work

Parts = dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The parts of a run that nothing interrupted, with its errors."""
    path = tmp_path_factory.mktemp("whole") / "run"
    work(path)
    return content(path)


def rows_read(path: Path) -> tuple[int, int]:
    return sum(batch.num_rows for batch in read_results(path)), sum(batch.num_rows for batch in read_errors(path))
