"""Tests the order of syncs against power cuts: each step begins when what it relies on is on the disk."""

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.files import atomic, checked_lines
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import append_closing
from mlx_bulk.runner.store.journal import Header
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.writer import Writer

from ..support.sessions import PER_SHARD, SAMPLES, SCHEMA, failure, flip, opened, record, work

FULL = getattr(fcntl, "F_FULLFSYNC", None)


class Recorded(list[str]):
    """Calls that change what is on the disk, in order, each with its file's path below ``root``; repeated writes are one.

    What goes through Python's own buffers is not seen; ``require_whole`` says whether it was all there at the file's last sync.
    """

    def __init__(self, root: Path):
        super().__init__()
        self.root = root
        self.sizes: dict[int, int] = {}

    def note(self, call: str, path: Path) -> None:
        said = f"{call} {path.absolute().relative_to(self.root)}"
        if call != "write" or self[-1:] != [said]:
            self.append(said)

    def path_of(self, descriptor: int) -> Path:
        """Of an open file: the one below the root that is the same."""
        found = os.fstat(descriptor)
        return next(path for path in (self.root, *self.root.rglob("*")) if os.path.samestat(path.lstat(), found))

    def synced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self.sizes[found.st_ino] = found.st_size
        self.note("sync", self.path_of(descriptor))

    def require_whole(self, path: Path) -> None:
        """The file's last sync was of all that is in it."""
        found = path.stat()
        assert self.sizes[found.st_ino] == found.st_size


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Lists the calls on paths below ``tmp_path``."""
    recorded = Recorded(tmp_path)

    def recording(name: str, note: Callable[..., object]) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = real(*arguments, **keywords)
            note(*arguments)
            return result

        monkeypatch.setattr(os, name, call)

    def full_sync(descriptor: int, command: int, *arguments: Any) -> Any:
        if command == FULL:
            recorded.synced(descriptor)
        return real_fcntl(descriptor, command, *arguments)

    real_fcntl = fcntl.fcntl
    if sys.platform == "darwin":
        monkeypatch.setattr(fcntl, "fcntl", full_sync)
    else:
        recording("fsync", recorded.synced)
    recording("write", lambda descriptor, _: recorded.note("write", recorded.path_of(descriptor)))
    recording("pwrite", lambda descriptor, *_: recorded.note("write", recorded.path_of(descriptor)))
    recording("ftruncate", lambda descriptor, _: recorded.note("write", recorded.path_of(descriptor)))
    recording("truncate", lambda path, _: recorded.note("write", Path(path)))
    recording("replace", lambda _, path: recorded.note("rename", Path(path)))
    recording("mkdir", lambda path, *_: recorded.note("make", Path(path)))
    recording("unlink", lambda path: recorded.note("remove", Path(path)))
    return recorded


def appears(folder: str, name: str) -> list[str]:
    """A file that appears whole."""
    return [f"sync {folder}/.{name}.tmp", f"rename {folder}/{name}", f"sync {folder}"]


def test_a_part_is_durable_before_its_line_and_the_line_before_the_journal_goes(tmp_path: Path, calls: Recorded):
    with opened(tmp_path) as run:
        out = Writer(
            run, run.identity, SCHEMA, Layout(PER_SHARD, PER_SHARD), run.recover(Layout(PER_SHARD, PER_SHARD), SCHEMA), fsync_seconds=3600
        )
        for row in range(1, PER_SHARD):
            out.fail(failure(row))
        out.admit(0, SAMPLES)
        for sample in range(SAMPLES):
            out.add(0, sample, record(0, sample))
        calls.clear()
        out.close()
    assert calls == [
        *appears("journal", "00000000"),
        "write journal/00000000",
        *appears("errors", "part-00000000.arrow"),
        *appears("results", "part-00000000.arrow"),
        "sync .",
        "write commits.jsonl",
        "sync commits.jsonl",
        "remove journal/00000000",
        "sync journal",
    ]
    for path in ("errors/part-00000000.arrow", "results/part-00000000.arrow", "commits.jsonl"):
        calls.require_whole(tmp_path / path)


def test_an_old_generation_goes_when_the_line_of_the_new_one_is_durable(tmp_path: Path, calls: Recorded):
    work(tmp_path, rows=3)
    with opened(tmp_path) as run:
        out = Writer(run, run.identity, SCHEMA, Layout(4, PER_SHARD), run.recover(Layout(4, PER_SHARD), SCHEMA), fsync_seconds=3600)
        calls.clear()
        out.fail(failure(3))
        out.close()
    assert calls[:-3] == [
        "write journal/00000000",
        *appears("errors", "part-00000000.g2.arrow"),
        *appears("results", "part-00000000.g2.arrow"),
        "write commits.jsonl",
        "sync commits.jsonl",
        "remove results/part-00000000.arrow",
        "remove errors/part-00000000.arrow",
        "remove journal/00000000",
    ]
    assert sorted(calls[-3:]) == ["sync errors", "sync journal", "sync results"]


def test_a_flush_leaves_the_journal_and_its_name_on_the_medium(tmp_path: Path, calls: Recorded):
    with opened(tmp_path) as run:
        out = Writer(
            run, run.identity, SCHEMA, Layout(PER_SHARD, PER_SHARD), run.recover(Layout(PER_SHARD, PER_SHARD), SCHEMA), fsync_seconds=3600
        )
        out.fail(failure(0))
        calls.clear()
        out.close()
    assert calls == [*appears("journal", "00000000"), "write journal/00000000", "sync journal/00000000"]
    calls.require_whole(tmp_path / "journal/00000000")


@pytest.mark.parametrize("make", [lambda path: journal.begin(path, Header(0, 1)), lambda path: atomic.atomic_write(path, b"{}")])
def test_a_file_appears_whole_and_durable(tmp_path: Path, calls: Recorded, make: Callable[[Path], None]):
    make(tmp_path / "file")
    assert calls == ["sync .file.tmp", "rename file", "sync ."]
    calls.require_whole(tmp_path / "file")


def test_each_line_is_on_the_medium_when_it_is_said_to_be(tmp_path: Path, calls: Recorded):
    paths = RunPaths(tmp_path)
    append_closing(paths, 1, 1, 0)
    assert calls == ["sync .", "write commits.jsonl", "sync commits.jsonl"]
    append_closing(paths, 2, 2, 0)
    assert calls[3:] == ["write commits.jsonl", "sync commits.jsonl"]
    calls.require_whole(paths.commits)


def test_a_torn_tail_is_cut_off_on_the_medium_before_more_is_appended(tmp_path: Path, calls: Recorded):
    path = tmp_path / "lines"
    path.write_bytes(b"torn")
    checked_lines.salvage_lines(path)
    assert calls == ["write lines", "sync lines"]
    journal.begin(tmp_path / "00000000", Header(0, 1))
    with (tmp_path / "00000000").open("ab") as file:
        file.write(b"torn")
    calls.clear()
    journal.read_journal(tmp_path / "00000000")
    assert calls == ["write 00000000", "sync 00000000"]


def test_a_commit_is_taken_back_on_the_medium_before_its_part_is_set_aside(tmp_path: Path, calls: Recorded):
    work(tmp_path, rows=4, failing=frozenset())
    flip(tmp_path / "results/part-00000000.arrow")
    with opened(tmp_path) as run:
        calls.clear()
        run.recover(Layout(4, PER_SHARD), SCHEMA)
    assert calls == [
        "write commits.jsonl",
        "sync commits.jsonl",
        "rename results/part-00000000.arrow.orphan",
        "sync results",
        "sync journal",
    ]


def test_a_folder_says_whose_it_is_before_anything_is_made_in_it(tmp_path: Path, calls: Recorded):
    RunDir.open(tmp_path / "runs/one").close()
    assert calls == [
        "make runs",
        "make runs/one",
        "sync runs",
        "sync .",
        "write runs/one/.lock",
        "sync runs/one/.lock",
        "sync runs/one",
        "make runs/one/results",
        "make runs/one/errors",
        "make runs/one/journal",
        "sync runs/one",
    ]
    calls.require_whole(tmp_path / "runs/one/.lock")
