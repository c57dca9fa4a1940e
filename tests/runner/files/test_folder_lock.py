"""Tests the lock of a folder: one writer, and the lock ends with its process."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.files import folder_lock
from mlx_bulk.runner.files.folder_lock import discard, holder, lock, missing_folders, refuse_strangers, unlock

MARK = "mlx-bulk run"
HOLD = (
    "import os, pathlib, signal, subprocess, sys; from mlx_bulk.runner.files.folder_lock import lock; "
    "lock(pathlib.Path(sys.argv[1]), 'mlx-bulk run'); "
)
SAY_AND_WAIT = "print('held', flush=True); signal.pause()"
FORK = "os.fork() or print(os.getpid(), flush=True); signal.pause()"  # the child says so itself, once it is on its own
SPAWN = "print(subprocess.Popen(['sleep', '1000'], close_fds=False).pid, flush=True); signal.pause()"
forks = pytest.mark.skipif(sys.platform == "darwin", reason="Apple's frameworks do not survive a fork without exec")


@contextmanager
def process(code: str, folder: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A process that holds the lock, and the line that it says then; killed at the end."""
    child = subprocess.Popen([sys.executable, "-c", HOLD + code, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path):
    with (
        process(SAY_AND_WAIT, tmp_path) as (child, _),
        pytest.raises(RunDirError, match=rf"process {child.pid} on \S+ \(since .*is working here\. Wait for it"),
    ):
        lock(tmp_path, MARK)


def test_who_holds_the_lock_is_seen_without_taking_it(tmp_path: Path):
    assert holder(tmp_path) is None
    with process(SAY_AND_WAIT, tmp_path) as (child, _):
        found = holder(tmp_path)
        assert found is not None
        assert found.pid == child.pid
        with pytest.raises(RunDirError, match=re.escape(f"{found} is working here")):
            lock(tmp_path, MARK)
    assert holder(tmp_path) is None  # the file says so still
    unlock(lock(tmp_path, MARK))


def test_a_holder_whose_words_are_damaged_is_one_all_the_same(tmp_path: Path):
    with process(SAY_AND_WAIT, tmp_path):
        (tmp_path / ".lock").write_text("{")
        assert str(holder(tmp_path)) == "another process"


def test_a_look_in_the_same_moment_does_not_refuse_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looking = os.open(tmp_path / ".lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(folder_lock, "sleep", lambda _: os.close(looking))  # the look is over by then
    held = lock(tmp_path, MARK)
    assert holder(tmp_path) is not None
    unlock(held)


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path):
    with process(SAY_AND_WAIT, tmp_path) as (child, _):
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert str(child.pid) in (tmp_path / ".lock").read_text()  # the file says so still; the lock is gone
        unlock(lock(tmp_path, MARK))


@pytest.mark.parametrize("code", [pytest.param(FORK, marks=forks, id="forked"), pytest.param(SPAWN, id="spawned")])
def test_a_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path, code: str):
    with process(code, tmp_path) as (parent, grandchild):
        parent.kill()
        parent.stdout = None  # the grandchild holds the other end open
        parent.wait()
        os.kill(int(grandchild), 0)  # it lives
        try:
            held = lock(tmp_path, MARK)
            assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
            unlock(held)
        finally:
            os.kill(int(grandchild), signal.SIGKILL)


@forks
def test_a_forked_child_that_goes_does_not_free_the_lock(tmp_path: Path):
    held = lock(tmp_path, MARK)
    if (child := os.fork()) == 0:
        unlock(held)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RunDirError, match=f"process {os.getpid()} "):
        lock(tmp_path, MARK)
    unlock(held)
    unlock(lock(tmp_path, MARK))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_volume_without_locks_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refused(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(RunDirError, match=r"its volume has no file locks .* Choose an --output on a local disk"):
        lock(tmp_path, MARK)


@pytest.mark.parametrize("step", ["pwrite", "ftruncate", "fsync"])
def test_a_start_that_stops_while_it_signs_leaves_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    (tmp_path / "results").mkdir()
    unlock(lock(tmp_path, MARK))
    monkeypatch.setattr(folder_lock.socket, "gethostname", lambda: "h")  # shorter words than those that stand there

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, step, stopped)
        patch.setattr("mlx_bulk.runner.files.atomic.sys.platform", "linux")
        with pytest.raises(KeyboardInterrupt):
            lock(tmp_path, MARK)
    assert holder(tmp_path) is None
    refuse_strangers(tmp_path, MARK, known=False)
    unlock(lock(tmp_path, MARK))
    assert json.loads((tmp_path / ".lock").read_bytes())["host"] == "h"


def test_folders_that_a_start_began_with_are_no_strangers_while_they_are_empty(tmp_path: Path):
    (tmp_path / "results").mkdir()
    (tmp_path / ".lock").touch()
    with pytest.raises(RunDirError, match="it holds results"):
        refuse_strangers(tmp_path, MARK, known=False)
    refuse_strangers(tmp_path, MARK, known=False, begins_with=("results", "errors"))
    (tmp_path / "results/part").touch()
    with pytest.raises(RunDirError, match="it holds results"):
        refuse_strangers(tmp_path, MARK, known=False, begins_with=("results", "errors"))


def test_a_folder_of_another_kind_is_not_taken_over(tmp_path: Path):
    unlock(lock(tmp_path, "mlx-bulk sweep"))
    refuse_strangers(tmp_path, MARK, known=False)  # a lock file alone is no content
    (tmp_path / "sweep.json").touch()
    refuse_strangers(tmp_path, "mlx-bulk sweep", known=False)
    with pytest.raises(RunDirError, match=r"is not an mlx-bulk run, it holds sweep\.json"):
        refuse_strangers(tmp_path, MARK, known=False)


def test_a_lock_that_waited_for_a_removed_file_is_taken_on_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, flock, opened = lock(tmp_path, MARK), fcntl.flock, list[int]()

    def discarded_before(descriptor: int, operation: int) -> None:
        opened.append(descriptor)
        if len(opened) == 1:  # the other process gives up between our opening of the file and our lock
            discard(tmp_path, first, (), ())
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", discarded_before)
    second = lock(tmp_path, MARK)
    monkeypatch.undo()
    assert len(opened) == 2
    assert os.path.samestat(os.fstat(second), (tmp_path / ".lock").stat())
    with pytest.raises(RunDirError, match="is working here"):
        lock(tmp_path, MARK)
    unlock(second)


def test_a_folder_with_files_is_not_discarded(tmp_path: Path):
    folder = tmp_path / "a" / "b"
    made = missing_folders(folder)
    (folder / "results").mkdir(parents=True)
    descriptor = lock(folder, MARK)
    (folder / "mine.txt").write_text("mine")
    discard(folder, descriptor, ("results",), made)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "mine.txt"]
    assert holder(folder) is None
