"""Tests groups and rounds in the writer: a group is one frame of the journal, and each record names its round."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.runner.core.errors import DROP
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store import journal, open_journals
from mlx_bulk.runner.store.results import read_errors, read_results
from mlx_bulk.runner.store.writer import Writer

SCHEMA = pa.schema([("row", pa.int64()), ("round", pa.int32()), ("sample", pa.int32()), ("completion", pa.large_string())])
LAYOUT = Layout(3, 2, 2)  # rows 0 1 | 2 and 0 1 | 2; positions 0 1 2 and 4 5 6
GROUP: dict[int, dict[str, Any]] = {sample: {"completion": f"text {sample}"} for sample in range(5)}


def open_writer(run: RunDir) -> Writer:
    return Writer(run, run.identity, SCHEMA, LAYOUT, run.recover(LAYOUT, SCHEMA), fsync_seconds=3600.0)


def dropped(position: int) -> Failure:
    return Failure(position, "key", None, DROP, "DegenerateGroup", "nothing to compare", "{}")


def test_a_group_is_never_in_two_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_journals, "_FRAME_RECORDS", 2)
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.admit(0, len(GROUP))
        out.add_group(0, GROUP)
        out.close(flush=False)
        kept = journal.read_journal(run.journal_of(0))
        assert kept is not None
        assert [batch.column("sample").to_pylist() for batch in kept.results] == [[0, 1, 2, 3, 4]]


def test_a_group_with_a_record_that_cannot_be_stored_is_left_out_whole(tmp_path: Path):
    class Unmeasurable:
        def __len__(self) -> int:
            raise MemoryError

    broken = {**GROUP, 3: {"completion": type("Text", (str,), {"__len__": Unmeasurable.__len__})("x")}}
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.add_group(0, GROUP)
        out.add_group(1, broken)
        with pytest.raises(MemoryError):
            out.close()
        kept = journal.read_journal(run.journal_of(0))
        assert kept is not None
        assert [row for batch in kept.results for row in batch.column("row").to_pylist()] == [0] * len(GROUP)


def test_a_group_that_is_there_is_not_taken_again(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.add_group(0, GROUP)
        out.add_group(0, GROUP)
        with pytest.raises(ValueError, match="row 0, sample 0 is finished already"):
            out.close()


def test_rows_of_several_rounds_lie_in_shards_of_their_own(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        for position in (6, 0, 4, 2, 1):
            out.admit(position, len(GROUP))
            out.add_group(position, GROUP)
        out.fail(dropped(5))
        out.finish()
        assert (out.rows, out.records, out.errors) == (6, 25, 1)
        records = [record for batch in read_results(run.root) for record in batch.to_pylist()]
        places = [(record["round"], record["row"], record["sample"]) for record in records]
        assert places == [(around, row, sample) for around, row in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)) for sample in range(5)]
        (failure,) = [failure for batch in read_errors(run.root) for failure in batch.to_pylist()]
        assert list(failure) == ["row", "round", "key", "sample", "stage", "error", "message", "input"]
        assert (failure["row"], failure["round"], failure["sample"]) == (1, 1, None)
        assert len(run.recover(LAYOUT, SCHEMA).committed) == 4


@pytest.mark.parametrize("position", [3, 7, -1])
def test_a_position_between_the_rounds_is_no_row(tmp_path: Path, position: int):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.admit(position, 1)
        with pytest.raises(ValueError, match=f"row {position} is not to be done"):
            out.close()
