"""Tests that a retry of errors leaves groups that the config dropped where they are."""

from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import DROP
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.failures import dropped_groups
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.commit_log import append_retry, read_commits
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import finished_errors, read_errors
from mlx_bulk.runner.store.writer import Writer

from ..support.sessions import NEVER, SCHEMA, failure, opened, record

LAYOUT = Layout(rows=6, rows_per_shard=3)  # rows 0 and 3 are dropped, row 1 fails
DROPPED = [0, 3]


def recorded(run: RunDir, rows: range, *, retry: bool = False, fails: bool = True, finish: bool = True) -> list[int]:
    """A session over these rows; those that it did."""
    recovered = run.recover(LAYOUT, SCHEMA, retry)
    assert 0 <= dropped_groups(run) <= recovered.errors
    out, did = Writer(run, run.identity, SCHEMA, LAYOUT, recovered, NEVER), list[int]()
    for row in rows:
        ledger = recovered.done.get(LAYOUT.shard_of(row))
        if LAYOUT.shard_of(row) in recovered.committed or (ledger is not None and ledger.is_resolved(row)):
            continue
        if ledger is not None and ledger.samples_of(row):
            out.admit(row, 1)
            continue
        did.append(row)
        if row in DROPPED:
            out.fail(Failure(row, None, None, DROP, "DegenerateGroup", "all rewards are 1", "{}"))
        elif row == 1 and fails:
            out.fail(failure(row))
        else:
            out.admit(row, 1)
            out.add(row, 0, record(row, 0))
    out.finish() if finish else out.close()
    return did


@pytest.mark.parametrize("first", [6, 2, 5])
def test_failures_that_count_as_done_are_those_that_no_retry_does_again(tmp_path: Path, first: int):
    path, failed = tmp_path / "run", [(1, "generate")]
    drops = [(row, DROP) for row in DROPPED if row < first]

    def counting(*, retried: bool = False) -> list[tuple[int, str]]:
        return sorted((line["row"], line["stage"]) for batch in finished_errors(path, retried=retried) for line in batch.to_pylist())

    with opened(path) as run:
        recorded(run, range(first), finish=first == LAYOUT.rows)
        assert (counting(), counting(retried=True)) == (sorted(drops + failed), drops)
        append_retry(RunPaths(path), 1, {0})  # declared, and killed before any journal says so
        assert counting() == drops
        run.recover(LAYOUT, SCHEMA)
        assert counting() == drops


def in_errors(run: Path) -> list[tuple[int, str]]:
    return [(line["row"], line["stage"]) for batch in read_errors(run) for line in batch.to_pylist()]


@pytest.mark.parametrize("first", [6, 2, 5])
def test_dropped_groups_are_not_done_again(tmp_path: Path, first: int):
    """first: the rows of the first session. With 6 both shards are committed, with 2 one is open, with 5 the one without errors."""
    path = tmp_path / "run"
    with opened(path) as run:
        recorded(run, range(first), finish=first == LAYOUT.rows)
    with opened(path) as run:
        assert recorded(run, range(LAYOUT.rows), retry=True, fails=False) == [1, *range(first, LAYOUT.rows)]
        assert dropped_groups(run) == 2
    assert in_errors(path) == [(row, DROP) for row in DROPPED]
    log = read_commits(RunPaths(path))
    assert log.closing == {"complete": True, "rows": 6, "records": 4, "errors": 2}
    assert log.generations == {0: 1 if first == 2 else 2, 1: 1}
    before = (path / "commits.jsonl").read_bytes()
    with opened(path) as run:
        assert recorded(run, range(LAYOUT.rows), retry=True) == []
    assert (path / "commits.jsonl").read_bytes() == before


def test_drops_are_counted_once_while_a_retry_is_open(tmp_path: Path):
    with opened(tmp_path / "run") as run:
        recorded(run, range(6))
        assert dropped_groups(run) == 2
    with opened(tmp_path / "run") as run:
        recovered = run.recover(LAYOUT, SCHEMA, retry_errors=True)
        assert (recovered.errors, dropped_groups(run), recovered.committed) == (2, 2, {1})
    with opened(tmp_path / "run") as run:  # cut short there, any start goes on
        assert recorded(run, range(6)) == [1]
    assert in_errors(tmp_path / "run") == [(0, DROP), (1, "generate"), (3, DROP)]
