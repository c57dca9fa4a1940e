"""Tests a made-up job, interrupted, killed and damaged: every (row, sample) once, and the bytes of an unbroken run."""

import errno
import logging
import os
import shutil
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.core.errors import OutOfRoom, RunDirError
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.store import recovery, writer
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import read_results
from mlx_bulk.runner.store.writer import Writer

from ..support.sessions import FAILING, PER_SHARD, ROWS, SCHEMA, check, content, failure, flip, forks, kills, opened, orphans, record, work

Parts = dict[tuple[str, int], str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The parts of a run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    work(path)
    check(path)
    return content(path)


@pytest.mark.parametrize("fsync_seconds", [0.0, 3600.0])
@pytest.mark.parametrize("shuffle", [1, 2, 3])
def test_neither_order_nor_framing_shows_in_the_parts(tmp_path: Path, whole: Parts, shuffle: int, fsync_seconds: float):
    work(tmp_path / "run", fsync_seconds=fsync_seconds, shuffle=shuffle)
    check(tmp_path / "run")
    assert content(tmp_path / "run") == whole


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(stops=st.lists(st.integers(0, 8), max_size=4), shuffle=st.integers(0, 99))
def test_any_number_of_sessions_makes_the_same_run(tmp_path_factory: pytest.TempPathFactory, whole: Parts, stops: list[int], shuffle: int):
    path = tmp_path_factory.mktemp("sessions") / "run"
    did = [place for number, stop in enumerate(stops) for place in work(path, shuffle=shuffle + number, stop_after=stop)]
    did += work(path, shuffle=shuffle)
    assert len(did) == len(set(did))  # what was saved is not done again
    check(path)
    assert content(path) == whole


@pytest.mark.slow
@forks
def test_killed_between_any_two_steps_the_next_session_makes_the_same_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Two shards: one with an error, and a last one that is not full."""
    work(tmp_path / "whole", rows=5)
    whole = content(tmp_path / "whole")
    for path in kills(tmp_path, lambda path: None, lambda path: work(path, rows=5, shuffle=5), least=25):
        work(path, rows=5, shuffle=6)
        check(path, rows=5)
        assert content(path) == whole
        assert orphans(path) == []
    assert "adopted" not in caplog.text  # where the journal is there, it makes the part again


@pytest.mark.slow
@forks
def test_killed_again_in_the_session_after_a_kill(tmp_path: Path, whole: Parts):
    """The first kill is behind the commit of one shard and within that of another."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    points = kills(tmp_path / "first", lambda path: None, lambda path: work(path, shuffle=5), least=40)
    path = next(islice(points, 40, None))
    points.close()
    for again in kills(
        tmp_path / "second", lambda copy: shutil.copytree(path, copy), lambda copy: work(copy, shuffle=7), least=20, stride=3
    ):
        work(again, shuffle=6)
        check(again)
        assert content(again) == whole


def test_a_shorter_input_than_committed_is_refused(tmp_path: Path):
    work(tmp_path / "run")
    with opened(tmp_path / "run") as run, pytest.raises(RunDirError, match="shard 2 is committed with 2 rows, the input now gives it 1"):
        run.recover(Layout(ROWS - 1, PER_SHARD), SCHEMA)


# ------------------------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "errors flipped"])
def test_a_damaged_part_is_set_aside_and_done_again(tmp_path: Path, whole: Parts, damage: str, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    part = path / ("errors" if "errors" in damage else "results") / "part-00000001.arrow"
    if damage == "missing":
        part.unlink()
    elif damage == "short":
        part.write_bytes(part.read_bytes()[:-1])
    else:
        flip(part)
    left = [file.read_bytes() for file in sorted(path.glob("*/part-00000001.arrow"))]
    assert [row for row, _ in work(path)] == [4, 4, 5, 5, 6, 6, 7, 7]
    assert "is done again" in caplog.text
    check(path)
    assert content(path) == whole
    assert (path / "results/part-00000001.g2.arrow").exists()
    assert sorted((path / name).read_bytes() for name in orphans(path)) == sorted(left)


def test_a_part_damaged_twice_leaves_two_aside(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path)
    for generation in ("", ".g2"):
        flip(path / f"results/part-00000002{generation}.arrow")
        work(path)
    check(path)
    assert content(path) == whole
    assert orphans(path) == ["results/part-00000002.arrow.orphan", "results/part-00000002.g2.arrow.orphan"]


@pytest.mark.slow
@forks
def test_killed_between_any_two_steps_of_doing_a_damaged_part_again(tmp_path: Path, whole: Parts):
    def damaged(path: Path) -> None:
        work(path)
        flip(path / "results/part-00000001.arrow")

    for path in kills(tmp_path, damaged, lambda path: work(path, shuffle=5), least=15, stride=2):
        work(path, shuffle=6)
        check(path)
        assert content(path) == whole
        assert orphans(path) == ["errors/part-00000001.arrow.orphan", "results/part-00000001.arrow.orphan"]


def test_parts_that_were_not_touched_are_not_read_and_copied_ones_are(tmp_path: Path, whole: Parts, monkeypatch: pytest.MonkeyPatch):
    hashed: list[Path] = []
    real = recovery.sha256
    monkeypatch.setattr(recovery, "sha256", lambda part: (hashed.append(part), real(part))[1])
    work(tmp_path / "run")
    work(tmp_path / "run")
    assert hashed == []
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for file in (tmp_path / "copy").glob("*/part-*"):
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    work(tmp_path / "copy")
    assert len(hashed) == len(whole)
    check(tmp_path / "copy")


def test_a_part_overwritten_in_place_whose_mtime_was_put_back_is_done_again(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path)
    part = path / "results/part-00000001.arrow"
    found = part.stat()
    flip(part)
    os.utime(part, ns=(found.st_atime_ns, found.st_mtime_ns))
    work(path)
    assert content(path) == whole


def test_a_complete_run_is_left_as_it_is(tmp_path: Path):
    work(tmp_path / "run")
    before = content(tmp_path / "run"), (tmp_path / "run/commits.jsonl").read_bytes()
    assert work(tmp_path / "run") == []
    assert (content(tmp_path / "run"), (tmp_path / "run/commits.jsonl").read_bytes()) == before


def test_an_empty_input_is_complete(tmp_path: Path):
    work(tmp_path / "run", rows=0)
    assert read_commits(RunPaths(tmp_path / "run")).closing == {"complete": True, "rows": 0, "records": 0, "errors": 0}
    assert list(read_results(tmp_path / "run")) == []


@pytest.mark.parametrize("damaged", ["torn", "flipped", "foreign"])
def test_a_journal_that_cannot_be_read_is_done_again(tmp_path: Path, whole: Parts, damaged: str, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path, stop_after=5)
    files = sorted((path / "journal").iterdir())
    if damaged == "foreign":
        files[1].write_bytes(files[0].read_bytes())
    else:
        flip(files[0], offset=40 if damaged == "flipped" else None)
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        work(path)
    assert "done again" in caplog.text
    check(path)
    assert content(path) == whole


def test_journaled_rows_that_the_input_lost_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    with opened(path) as run:
        out = Writer(run, run.identity, SCHEMA, Layout(ROWS, PER_SHARD), run.recover(Layout(ROWS, PER_SHARD), SCHEMA), fsync_seconds=0.0)
        out.add(9, 0, record(9, 0))
        out.close()
    work(path, rows=9)
    assert "holds rows that the input does not have; its rows are done again" in caplog.text
    check(path, rows=9)


def test_a_full_disk_stops_the_job_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Parts):
    path = tmp_path / "run"
    work(path, stop_after=3)
    with opened(path) as run, monkeypatch.context() as patch:
        out = Writer(run, run.identity, SCHEMA, Layout(ROWS, PER_SHARD), run.recover(Layout(ROWS, PER_SHARD), SCHEMA), fsync_seconds=0.0)

        def full(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))

        patch.setattr(writer.journal, "append_bytes", full)
        # More calls than the queue has room for: a writer that stopped taking would block here for ever.
        with pytest.raises(OutOfRoom, match=r"No space left on device\. The volume .+ has [\d.,]+ \w+ free"):  # noqa: PT012
            for _ in range(10_000):
                out.fail(failure(8, message="once"))
        with pytest.raises(OutOfRoom):
            out.close()
    work(path)
    check(path)
    assert content(path) == whole


def test_recovery_counts_the_written_records(tmp_path: Path):
    did = work(tmp_path / "run", stop_after=15)
    with opened(tmp_path / "run") as run:
        recovered = run.recover(Layout(ROWS, PER_SHARD), SCHEMA)
    assert recovered.errors == len(FAILING.intersection(did))
    assert recovered.records == 15 - recovered.errors
