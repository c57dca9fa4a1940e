"""Tests remembered hashes of large files: a hash is always that of the present bytes."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import time_ns

import pytest
from mlx_bulk.runner.files import hash_cache
from mlx_bulk.runner.files.hash_cache import file_sha256

LONG_AGO = 10**18  # ns since 1970
LATER = time_ns() + 3600 * 10**9


def of(content: bytes) -> str:
    return sha256(content).hexdigest()


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose bytes were read. Every file counts as large and as not written just now, and the memory is the test's own."""
    found: list[Path] = []

    def counted(path: Path) -> str:
        found.append(path)
        return of(path.read_bytes())

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hash_cache, "REMEMBERED_BYTES", 0)
    monkeypatch.setattr(hash_cache, "sha256", counted)
    monkeypatch.setattr(hash_cache, "time_ns", lambda: LATER)
    return found


def write(path: Path, content: bytes, mtime_ns: int = LONG_AGO) -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def test_a_large_file_is_read_once(tmp_path: Path, reads: list[Path]):
    path = write(tmp_path / "a", b"weights")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert [file_sha256(path), file_sha256(path), file_sha256(link)] == [of(b"weights")] * 3
    assert reads == [path]


def test_a_small_file_is_read_each_time(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a", b"weights")
    monkeypatch.setattr(hash_cache, "REMEMBERED_BYTES", 8)
    assert [file_sha256(path), file_sha256(path)] == [of(b"weights")] * 2
    assert reads == [path, path]
    assert not (tmp_path / "cache").exists()


CHANGES: dict[str, Callable[[Path], object]] = {
    "another mtime": lambda path: write(path, b"other!!", LONG_AGO + 1),
    "another size": lambda path: write(path, b"longer weights"),
    "another ctime": lambda path: write(path, b"other!!"),  # written in place, and its mtime put back
    "another inode": lambda path: write(path.with_name("new"), b"other!!").replace(path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[Path], change: str):
    path = write(tmp_path / "a", b"weights")
    file_sha256(path)
    CHANGES[change](path)
    assert file_sha256(path) == of(path.read_bytes())
    assert len(reads) == 2


def test_a_file_written_just_now_is_not_remembered(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch):
    """It may be written again under the same times, as some file systems count in two seconds."""
    path = write(tmp_path / "a", b"weights")
    monkeypatch.setattr(hash_cache, "time_ns", lambda: path.stat().st_ctime_ns + 1_900_000_000)
    assert file_sha256(path) == of(b"weights")
    inode = path.stat().st_ino
    write(path, b"other!!")
    assert path.stat().st_ino == inode
    assert file_sha256(path) == of(b"other!!")
    monkeypatch.setattr(hash_cache, "time_ns", lambda: path.stat().st_ctime_ns + 2_100_000_000)
    assert [file_sha256(path), file_sha256(path)] == [of(b"other!!")] * 2
    assert len(reads) == 3


def test_a_file_written_while_it_is_read_is_not_remembered(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a", b"weights")
    counted = hash_cache.sha256

    def written_meanwhile(place: Path) -> str:
        found = counted(place)
        write(path, b"other!!", LONG_AGO + 1)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(hash_cache, "sha256", written_meanwhile)
        file_sha256(path)
    assert file_sha256(path) == of(b"other!!")
    assert len(reads) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"sha256": "00"}', b"\xff\xfe", "flip"])
def test_a_damaged_memory_is_not_believed(tmp_path: Path, reads: list[Path], content: bytes | str):
    path = write(tmp_path / "a", b"weights")
    file_sha256(path)
    (kept,) = (tmp_path / "cache").rglob("*.json")
    if isinstance(content, str):
        content = kept.read_bytes().replace(of(b"weights").encode(), of(b"others").encode())
    kept.write_bytes(content)
    assert [file_sha256(path), file_sha256(path)] == [of(b"weights")] * 2
    assert len(reads) == 2  # read again, and then remembered again


def test_hashes_that_another_process_adds_are_kept(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch):
    mine, theirs = write(tmp_path / "mine", b"weights"), write(tmp_path / "theirs", b"adapter")
    counted = hash_cache.sha256

    def interrupted(place: Path) -> str:
        if place == mine:
            file_sha256(theirs)
        return counted(place)

    with monkeypatch.context() as patch:
        patch.setattr(hash_cache, "sha256", interrupted)
        file_sha256(mine)
    reads.clear()
    assert (file_sha256(mine), file_sha256(theirs)) == (of(b"weights"), of(b"adapter"))
    assert reads == []


@pytest.mark.parametrize("home", ["a file in its place", "nobody's"])
def test_without_a_place_to_remember_files_are_hashed_all_the_same(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch, home: str
):
    monkeypatch.chdir(tmp_path)
    if home == "nobody's":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id without an entry
    else:
        (tmp_path / "cache").write_text("")
    path = write(tmp_path / "a", b"weights")
    assert [file_sha256(path), file_sha256(path)] == [of(b"weights")] * 2
    assert len(reads) == 2
    assert not (tmp_path / "~").exists()
