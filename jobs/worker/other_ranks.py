"""The processes of a group beside the engine's: one for each further rank, here or on another machine by ssh.

One that ends takes all with it, as none can go on alone. What ended the group is told from the exit codes.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING

from .rank_commands import ports_for, rank_variables, remote_command, remote_kill

if TYPE_CHECKING:  # it brings pydantic, which a worker without a group has no use for
    from .hostfile import Host, Hostfile

log = logging.getLogger("mlx_bulk")

STALLED, LOST = 91, 92  # as in stall_watch.py, which loads mlx
NO_SSH = 255  # the exit code of ssh where there is no connection, or no more
GATHER_SECONDS = 2.0  # for ranks to end after one has
_POLL_SECONDS = 0.05
_KILL_SECONDS = 15.0  # for ssh to end a process


@dataclass(slots=True, frozen=True)
class GroupEnd:
    """What ended a group. code: of the rank to blame, negative for a signal. who: that rank. fault: of a machine or the network, if any."""

    code: int
    who: str
    fault: str = ""


@dataclass(slots=True)
class _Rank:
    number: int
    host: "Host"
    process: "subprocess.Popen[bytes]"
    remote: int | None = None  # the number of its process on another machine
    killed: bool = False

    @property
    def name(self) -> str:
        return f"rank {self.number} ({self.host.ssh})"

    def kill(self) -> None:
        """Ends the process at once, wherever it is."""
        self.killed = True
        if self.remote is not None:
            with suppress(subprocess.SubprocessError, OSError):
                subprocess.run(remote_kill(self.host.ssh, self.remote), timeout=_KILL_SECONDS, stdin=subprocess.DEVNULL, check=False)
        self.process.kill()

    def read_number(self) -> None:
        """Reads the number of the process on the other machine, and passes on what else it prints."""
        assert self.process.stdout is not None
        with suppress(ValueError):
            self.remote = int(self.process.stdout.readline())
        for line in self.process.stdout:
            sys.stderr.buffer.write(line)


@dataclass(slots=True)
class OtherRanks:
    """The ranks of a group but the first, started at once. command: of each rank. ``environment`` is the first one's."""

    hostfile: "Hostfile"
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    _ranks: list[_Rank] = field(default_factory=list[_Rank])
    _folder: "TemporaryDirectory[str] | None" = None
    _end: GroupEnd | None = None
    _watching: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="mlx-bulk-group-")
        ports = ports_for(self.hostfile)
        self.environment = self._local(0, ports)
        for number, host in enumerate(self.hostfile.hosts[1:], start=1):
            self._ranks.append(_Rank(number, host, self._started(number, host, ports)))
            if not host.local:
                threading.Thread(target=self._ranks[-1].read_number, name="rank", daemon=True).start()

    def watch(self, first: "subprocess.Popen[bytes]") -> None:
        """Watches all ranks, of which ``first`` is the engine's process, from a thread of its own."""
        ranks = [_Rank(0, self.hostfile.hosts[0], first), *self._ranks]
        self._watching = threading.Thread(target=self._watch, args=(ranks,), name="ranks", daemon=True)
        self._watching.start()

    def kill(self) -> None:
        """Ends the ranks, and does not wait for ssh, which may hang."""
        for rank in self._ranks:
            rank.killed = True
            threading.Thread(target=rank.kill, name="kill").start()

    def end(self) -> GroupEnd:
        """Waits until all ranks have ended, and returns what ended them."""
        assert self._watching is not None, "they are watched"
        self._watching.join()
        assert self._end is not None, "that thread has said it"
        return self._end

    def _local(self, rank: int, ports: Sequence[int]) -> dict[str, str]:
        """Returns the environment of a rank on this machine; writes the files that it names."""
        assert self._folder is not None
        variables = rank_variables(self.hostfile, rank, ports)
        named = {name: Path(self._folder.name) / f"{name}-{rank}" for name in variables.files}
        for name, path in named.items():
            path.write_text(variables.files[name])
        return {**os.environ, **variables.values, **{name: str(path) for name, path in named.items()}}

    def _started(self, rank: int, host: "Host", ports: Sequence[int]) -> "subprocess.Popen[bytes]":
        if host.local:
            return subprocess.Popen(
                self.command, env=self._local(rank, ports), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        command = remote_command(host.ssh, rank_variables(self.hostfile, rank, ports), self.command)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

    def _watch(self, ranks: list[_Rank]) -> None:
        while all(rank.process.poll() is None for rank in ranks):
            sleep(_POLL_SECONDS)
        deadline = monotonic() + GATHER_SECONDS
        while monotonic() < deadline and any(rank.process.poll() is None for rank in ranks):
            sleep(_POLL_SECONDS)
        for rank in ranks:
            if rank.process.poll() is None:
                rank.kill()
        for rank in ranks:
            rank.process.wait()
            if rank.process.stdin is not None:
                with suppress(OSError):
                    rank.process.stdin.close()
        self._end = group_end([(rank.name, rank.process.returncode) for rank in ranks if not rank.killed])
        if self._end.code:
            log.info("the group has ended: %s", self._end.fault or cause_of(self._end))
        if self._folder is not None:
            self._folder.cleanup()


def group_end(codes: Sequence[tuple[str, int]]) -> GroupEnd:
    """Returns what ended a group, from the names of ranks and the exit codes of those that ended by themselves.

    A signal says most, then an error's code. What is left is a machine or the network between them: no row is to blame for it.
    """
    signals = [(name, -code if code < 0 else code - 128) for name, code in codes if code < 0 or 128 < code < NO_SSH]
    if signals:
        name, number = signals[0]
        return GroupEnd(-number, name)
    errors = [(name, code) for name, code in codes if code not in (0, STALLED, LOST, NO_SSH)]
    if errors:
        return GroupEnd(errors[0][1], errors[0][0])
    for fault, text in ((NO_SSH, "ssh has no connection to {}"), (STALLED, "{} saw no step of the others"), (LOST, "{} lost another rank")):
        for name, code in codes if all(code for _, code in codes) else ():  # one that has ended in order breaks the connection, too
            if code == fault:
                return GroupEnd(code, name, text.format(name))
    return GroupEnd(0, codes[0][0] if codes else "rank 0")


def cause_of(end: GroupEnd) -> str:
    """Says how the rank that is to blame has ended."""
    if end.code < 0:
        with suppress(ValueError):
            return f"{end.who} died of {signal.Signals(-end.code).name}"
    return f"{end.who} has ended with code {end.code}"
