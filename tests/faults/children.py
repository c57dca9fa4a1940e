"""Starts ``mlx-bulk`` in processes of their own that can be made to die, and says how they ended.

On Linux each is forked from one process that has imported everything, so that a start takes a fifth of a second; on macOS, where
Apple's frameworks do not survive a fork, each is a fresh process. Knows nothing of runs.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from .child import NO_MOUNTS, PATIENCE
from .points import Point

FORKS = sys.platform != "darwin"
PROGRAM = str(Path(__file__).with_name("child.py"))
ALONE = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # such small products gain nothing from threads


@dataclass(slots=True, frozen=True)
class Ended:
    """How a command ended: its exit code (minus the signal that killed it), its text, and the points that it came to."""

    code: int
    stdout: str
    stderr: str
    points: list[str]

    @property
    def killed(self) -> bool:
        """True when it died of SIGKILL."""
        return self.code == -signal.SIGKILL


@dataclass(slots=True)
class Child:
    """A command under way."""

    pid: int
    folder: Path
    children: "Children"
    process: "subprocess.Popen[bytes] | None" = None

    def at_point(self) -> str:
        """Waits until it has come to a point, and says which."""
        return self.children.said_by(self.pid)

    def go_on(self) -> None:
        """Lets it go on where it was told to hold."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> Ended:
        """Waits for its end."""
        code = self.children.ask(do="wait", pid=self.pid)["code"] if self.process is None else self.process.wait()
        self.children.running.remove(self.pid)
        if code == NO_MOUNTS:
            pytest.skip("mounting is not permitted here, and neither are user namespaces")
        stdout, stderr = ((self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(code, stdout, stderr, self.children.points_of(self.pid))


@dataclass(slots=True)
class Children:
    """A context manager that holds the process they are forked from; ``folder`` is for their output."""

    model: Path
    folder: Path
    nursery: "subprocess.Popen[str] | None" = None
    started: int = 0
    running: set[int] = field(default_factory=set[int])
    pipe: tuple[int, int] = field(default_factory=os.pipe)
    unread: str = ""
    said: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def __enter__(self) -> Self:
        if FORKS:
            command = [sys.executable, PROGRAM, "serve", str(self.pipe[1]), str(self.model)]
            self.nursery = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[self.pipe[1]], bufsize=1, env=ALONE
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pid in self.running:  # a test that failed left them
            os.kill(pid, signal.SIGKILL)
        if self.nursery is not None:
            self.nursery.communicate()
        for descriptor in self.pipe:
            os.close(descriptor)

    def start(
        self,
        cwd: Path,
        *arguments: str,
        points: Sequence[Point] = (),
        stdin: Path | None = None,
        mounts: Sequence[Sequence[str]] = (),
        keep: Sequence[tuple[Path, Path]] = (),
    ) -> Child:
        """Starts ``mlx-bulk`` with such arguments in the folder ``cwd``.

        ``mounts``: volumes that only this process sees (``child.mount``). ``keep``: folders to copy when it has ended by itself.
        """
        self.started += 1
        folder = self.folder / str(self.started)
        folder.mkdir()
        command = {
            "do": "start",
            "arguments": arguments,
            "cwd": str(cwd),
            "stdin": str(stdin or os.devnull),
            "stdout": str(folder / "stdout"),
            "stderr": str(folder / "stderr"),
            "points": [point.described() for point in points],
            "mounts": mounts,
            "keep": [[str(source), str(target)] for source, target in keep],
        }
        if FORKS:
            child = Child(self.ask(**command)["pid"], folder, self)
        else:
            once = [sys.executable, PROGRAM, "once", str(self.pipe[1]), json.dumps(command)]
            process = subprocess.Popen(once, pass_fds=[self.pipe[1]], env=ALONE)
            child = Child(process.pid, folder, self, process)
        self.running.add(child.pid)
        return child

    def ask(self, **command: Any) -> dict[str, Any]:
        """The forking process's answer."""
        assert self.nursery is not None
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps(command) + "\n")
        return json.loads(self.nursery.stdout.readline())

    def said_by(self, pid: int) -> str:
        """The last point that the child ``pid`` came to; waits for the first."""
        while pid not in self.said:
            assert self._listen(PATIENCE), "the child came to no point"
        return self.said[pid][-1]

    def points_of(self, pid: int) -> list[str]:
        """All of them, of a child that has ended."""
        while self._listen(0):
            pass
        return self.said.pop(pid, [])

    def _listen(self, seconds: float) -> bool:
        """Takes in what children said; whether there was anything."""
        if not select.select([self.pipe[0]], [], [], seconds)[0]:
            return False
        *lines, self.unread = (self.unread + os.read(self.pipe[0], 1 << 16).decode()).split("\n")
        for line in lines:
            pid, _, name = line.partition(" ")
            self.said.setdefault(int(pid), []).append(name)
        return True
