"""Tests checked lines, appends that leave nothing torn, and whole files by rename."""

import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs.errors import BulkError
from mlx_bulk.runner.core.errors import OutOfRoom, RunDirError
from mlx_bulk.runner.files import atomic, checked_lines, disk_space

VALUES = [{"shard": 0, "name": "é\n\u2028"}, {}, {"shard": 2, "nested": {"a": [1, None, 2.5]}}]


def write(path: Path) -> bytes:
    for value in VALUES:
        checked_lines.append_line(path, value)
    return path.read_bytes()


def test_lines_round_trip(tmp_path: Path):
    content = write(tmp_path / "lines")
    assert checked_lines.read_lines(tmp_path / "lines") == VALUES
    assert content.count(b"\n") == len(VALUES)
    assert checked_lines.read_lines(tmp_path / "missing") == []


def test_a_torn_tail_is_left_by_reading_and_cut_by_salvaging(tmp_path: Path):
    path = tmp_path / "lines"
    content = write(path)
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        whole = sum(end <= length for end in ends)
        path.write_bytes(content[:length])
        assert checked_lines.read_lines(path) == VALUES[:whole]
        assert path.stat().st_size == length
        assert checked_lines.damaged_lines(path) == []
        assert checked_lines.salvage_lines(path) == (VALUES[:whole], 0)
        assert path.stat().st_size == ([0, *ends])[whole]
        checked_lines.append_line(path, {"after": 1})
        assert checked_lines.read_lines(path) == [*VALUES[:whole], {"after": 1}]


@given(st.data())
def test_a_flipped_bit_never_passes_for_a_value(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    path = tmp_path_factory.mktemp("lines") / "lines"
    content = bytearray(write(path))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    found = checked_lines.read_lines(path)
    assert len(found) in (1, 2)  # two lines are lost where the flip was in the end of the first
    assert [value for value in VALUES if value in found] == found
    assert checked_lines.salvage_lines(path)[0] == found
    checked_lines.append_line(path, {"after": 1})
    assert checked_lines.salvage_lines(path) == ([*found, {"after": 1}], 0)


def test_damaged_lines_are_removed_and_the_old_file_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "commits.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], lines[1].replace(b"check", b"chuck"), b"\xff\r\n", lines[2]])
    path.write_bytes(damaged)
    assert checked_lines.read_lines(path) == [VALUES[0], VALUES[2]]
    assert checked_lines.damaged_lines(path) == [2, 3]
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert checked_lines.salvage_lines(path) == ([VALUES[0], VALUES[2]], 2)
        assert checked_lines.salvage_lines(path) == ([VALUES[0], VALUES[2]], 0)
    assert caplog.messages == [
        f"{path}: 2 damaged lines (their checksums do not fit) are taken out; the file as it was is commits.jsonl.damaged"
    ]
    assert path.read_bytes() == lines[0] + lines[2]
    assert (tmp_path / "commits.jsonl.damaged").read_bytes() == damaged


def test_a_line_refuses_what_it_could_not_give_back(tmp_path: Path):
    with pytest.raises(ValueError, match="check"):
        checked_lines.append_line(tmp_path / "lines", {"check": 1})
    with pytest.raises(ValueError, match="JSON"):
        checked_lines.append_line(tmp_path / "lines", {"loss": float("nan")})
    assert not (tmp_path / "lines").exists()


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "lines"
    content = write(path)
    real, calls = os.write, []

    def full(descriptor: int, piece: memoryview) -> int:
        if calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(piece)
        return real(descriptor, piece[:3])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutOfRoom, match=r"volume .+ has [\d.,]+ \w+ free"), disk_space.room_on(tmp_path):
        checked_lines.append_line(path, {"shard": 3})
    assert calls
    assert path.read_bytes() == content


def test_other_errors_of_the_system_stay_what_they_are(tmp_path: Path):
    with pytest.raises(FileNotFoundError), disk_space.room_on(tmp_path):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(PermissionError), disk_space.room_on(tmp_path / "run"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "weights"))


@pytest.mark.parametrize(
    ("number", "kind", "code", "said"),
    [
        (errno.EROFS, OutOfRoom, 6, "is on a read-only volume. Make it writable, or choose another --output."),
        (errno.EDQUOT, OutOfRoom, 6, "make room there, then continue with the same command (without --overwrite)"),
        (errno.EACCES, RunDirError, 5, "Give this user the right to write there, or choose another --output."),
        (errno.EPERM, RunDirError, 5, "Give this user the right to write there, or choose another --output."),
    ],
)
def test_what_may_not_be_written_is_named_with_the_way_out(tmp_path: Path, number: int, kind: type[BulkError], code: int, said: str):
    with pytest.raises(kind) as caught, disk_space.room_on(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "results"))
    assert caught.value.exit_code == code
    assert str(caught.value).startswith(f"{tmp_path}/results: ")
    assert said in str(caught.value)


def test_atomic_write_replaces_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.json"
    atomic.atomic_write(path, b"old")
    (tmp_path / ".run.json.tmp").write_bytes(b"left by a killed process, longer than what comes")
    atomic.atomic_write(path, b"new")
    assert path.read_bytes() == b"new"

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, f"descriptor {descriptor}")

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(atomic.sys, "platform", "linux")
    with pytest.raises(OSError, match="descriptor"):
        atomic.atomic_write(path, b"newer")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_files_follow_the_users_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        atomic.atomic_write(tmp_path / "a", b"")
        atomic.append_bytes(tmp_path / "b", b"x")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o640, 0o640]


def test_salvaging_reports_what_it_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "lines"
    path.write_bytes(write(path) + b'{"torn')
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        checked_lines.salvage_lines(path)
    assert caplog.messages == [f"{path}: cut off 6 bytes after the last whole line"]


def test_writers_without_a_lock_do_not_write_into_each_others_file(tmp_path: Path):
    path = tmp_path / "page"
    with atomic.replacing(path, ".1") as first:
        first.write(b"one")
        atomic.atomic_write(path, b"another", ".2")
        first.write(b" whole")
    assert path.read_bytes() == b"one whole"
    assert [file.name for file in tmp_path.iterdir()] == ["page"]
