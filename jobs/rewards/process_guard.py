"""Runs a Python script in a child process. Ends it with all that it has started, when it ends or when the run does.

It is run as a script by its path and imports the standard library alone. It knows nothing of rewards.

    run ── holds life open ──► guard ──► worker.py ──► what its functions start

It ends the script's process group, and all processes below it. On Linux it adopts orphans (PR_SET_CHILD_SUBREAPER), so that these are
below it too. A thread of the script could not do this: a function may hold the interpreter's lock (re.match does).

    arguments: the descriptor of life; the script; descriptors for the script alone
"""

import ctypes
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, see prctl(2)
_PROC = Path("/proc")


def guard(life: int, script: str, ends: Sequence[str]) -> None:
    """Runs ``script`` in a child process, and ends as that has ended. In the child it returns after the script.

    life: a byte or its end of file says that the run needs the script no more. ends: descriptors that the script gets as its arguments.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    if child := os.fork():
        try:
            _end_like(_ended(child, life, ends))
        finally:
            os._exit(1)
    os.close(life)
    os.setsid()  # signals to its group reach neither the guard nor the run
    sys.argv = [script, *ends]
    runpy.run_path(script, run_name="__main__")


def _ended(child: int, life: int, ends: Sequence[str]) -> int:
    """Waits until the child or the run ends. Then ends all that is left; returns the child's wait status."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for end in (0, 1, 2, *map(int, ends)):  # else the run would not see that the child has closed them
        os.close(end)
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(woken, select.POLLIN)
    status = _reaped(child)
    while status is None and life not in [end for end, _ in poll.poll()]:
        os.read(woken, 64)
        status = _reaped(child)
    last = _end_all(child)
    return last if status is None else status


def _reaped(child: int) -> int | None:
    """Takes leave of processes that have ended; returns the status of the child where it is among them."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return ended[1]
    return None


def _end_all(child: int) -> int:
    """Kills the child's group and all processes below this one until none is left. Returns the child's wait status, 0 if it had ended."""
    status = 0
    below = _below(os.getpid(), _processes())  # where orphans are not adopted, they are found only before their parents end
    _kill(os.killpg, child)
    while True:
        for process in below:
            _kill(os.kill, process)
        try:
            ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if ended[0] == child:
            status = ended[1]
        below = _below(os.getpid(), _processes())


def _kill(send: Callable[[int, int], None], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or a zombie (macOS)
        send(number, signal.SIGKILL)


def resident_bytes(root: int) -> int:
    """Returns the memory that the process ``root``, and all below it, have resident."""
    table = _processes()
    return sum(table[process].resident for process in [root, *_below(root, table)] if process in table)


class _Process(NamedTuple):
    """A line of the table of processes."""

    parent: int
    resident: int


def _processes() -> dict[int, _Process]:
    """Returns all processes of the machine by their number."""
    table: dict[int, _Process] = {}
    if sys.platform != "linux":
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, check=False, text=True).stdout.splitlines()
        return {int(pid): _Process(int(parent), 1024 * int(kilobytes)) for pid, parent, kilobytes in map(str.split, lines)}
    page = os.sysconf("SC_PAGE_SIZE")
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()  # from the third on, see proc(5)
            table[int(folder.name)] = _Process(int(fields[1]), page * int(fields[21]))
    return table


def _below(root: int, table: Mapping[int, _Process]) -> list[int]:
    """Returns the processes that ``root`` has started, and those that these have started."""
    children: dict[int, list[int]] = {}
    for number, process in table.items():
        children.setdefault(process.parent, []).append(number)
    found = [root]
    for number in found:
        found += children.get(number, [])
    return found[1:]


def _end_like(status: int) -> None:
    """Ends this process with the exit code or the signal of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # of SIGKILL nothing can be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
