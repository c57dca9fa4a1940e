"""Workers on the driver's own machine: processes of ``mlx-bulk worker --once``, among which cores and GPUs are divided.

One that dies is started again, unless it dies again and again before it has finished a row. Workers outlive a driver that is killed:
the next one at the same address takes them over, as each has a model in memory.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import methodcaller
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from ...kernels.cpu.cores import usable_cores

if TYPE_CHECKING:  # it comes with the extra cluster
    import psutil

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")  # of each library that may multiply
MOST_DEATHS = 3  # of a worker, in a row, without a finished row
LEAVES = {0, 2, *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))}  # codes of a worker that is to stay away
SECRET = "MLX_BULK_DRIVER_SECRET"  # of the environment, which other accounts cannot read: what such a worker and its driver share
END_SECONDS = 12.0  # for a worker to leave: its engine ends between two steps, its last frames are acked

_GPUS = Path("/proc/driver/nvidia/gpus")
_DRIVER = "MLX_BULK_DRIVER"  # of a worker's environment: the process that started it
_FREE = ("--wait", "--log-level")  # options that may differ where a worker is taken over
_UNKNOWN = 256  # the exit code of a process that is not a child of this one
_POLL_SECONDS = 0.05

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True)
class _LocalWorker:
    """A worker's process, and how often it has died since it finished a row. away: it is not started again. joined: the driver."""

    number: int
    process: "subprocess.Popen[bytes] | _Orphan"
    deaths: int = 0
    away: bool = False
    joined: bool = False

    @property
    def name(self) -> str:
        return f"local-{self.number + 1}"


class LocalWorkers:
    """``count`` workers that join the driver at ``address``; they are named local-1, local-2, … and log to this process's stderr.

    wait: seconds after which they leave when no driver is there, as when this process is killed. threads: of each worker's matrix
    products, None for its part of the cores. options: further options of ``mlx-bulk worker``. secret: by which they and the driver know
    each other, None where anyone on this machine may join.
    """

    def __init__(
        self, count: int, address: str, wait: float, threads: int | None = None, options: Sequence[str] = (), secret: str | None = None
    ):
        self._command = [sys.executable, "-P", "-m", "mlx_bulk.jobs", "worker", address, "--once", "--wait", str(wait), *options]
        self._count, self._threads, self._secret = count, threads, {} if secret is None else {SECRET: secret}
        orphans = self._orphans()
        self._workers = [_LocalWorker(number, orphans.get(number) or self._start(number)) for number in range(count)]

    @property
    def ended(self) -> list[int]:
        """The exit codes of workers that have left already."""
        return [code for each in self._workers if (code := each.process.poll()) is not None]

    def note_joined(self, worker: str) -> None:
        """Notes that a worker with this name in messages has joined the driver."""
        for each in self._workers:
            each.joined |= worker.startswith(f"{each.name}-")

    def note_row(self, worker: str) -> None:
        """Notes that a worker with this name in messages has finished rows."""
        for each in self._workers:
            if worker.startswith(f"{each.name}-"):
                each.deaths = 0

    def note_left(self, worker: str) -> None:
        """Notes that a worker with this name in messages has left in order."""
        for each in self._workers:
            if worker.startswith(f"{each.name}-") and isinstance(each.process, _Orphan):
                each.process.in_order = True

    def tend(self) -> None:
        """Starts workers again that have died. One that was asked to leave, or has died too often, stays away."""
        for each in self._workers:
            code = each.process.poll()
            if code is None or each.away:
                continue
            each.deaths += 1
            each.away = code in LEAVES or each.deaths >= MOST_DEATHS
            if not each.away:
                log.warning("%s %s: it is started again", each.name, _ended(code))
                each.process, each.joined = self._start(each.number), False
            elif code not in LEAVES:
                often = f"{each.deaths} times without a finished row, the last time it {_ended(code)}"
                log.warning("%s has ended %s: it is not started again", each.name, often)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, "--name", f"local-{number + 1}"],
            env={**os.environ, **worker_environment(number, self._count, self._threads), **self._secret, _DRIVER: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a signal from the terminal is for the driver, which ends them in order
        )

    def end(self) -> None:
        """Waits until the workers, which the driver has dismissed, have left; ends those that do not.

        Those that have not joined yet, as one that was just started again, are not waited for: they would look for the driver first.
        """
        for each in self._workers:
            if not each.joined and each.process.poll() is None:
                each.process.terminate()
        for end in (lambda process: None, methodcaller("terminate"), methodcaller("kill")):
            deadline = monotonic() + END_SECONDS
            for each in self._workers:
                if each.process.poll() is None:
                    end(each.process)
            for each in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    each.process.wait(max(0.0, deadline - monotonic()))

    def _orphans(self) -> "dict[int, _Orphan]":
        """Returns the workers of an earlier driver at this address, which waits for them no more, by their numbers.

        Those that do not fit, as they have other threads or are too many, are asked to leave first: two models may be too much.
        """
        wanted, found, others = _lasting([*self._command, "--name"]), dict[int, _Orphan](), list[_Orphan]()
        for process, words, environment in _own_processes():
            *rest, name = _lasting(words) or [""]
            if rest != wanted or str(process.ppid()) == environment.get(_DRIVER):
                continue
            number = next((number for number in range(self._count) if name == f"local-{number + 1}" and number not in found), None)
            if number is None or worker_environment(number, self._count, self._threads).items() - environment.items():
                others.append(_Orphan(process))
                continue
            log.info("%s of an earlier start works on", name)
            found[number] = _Orphan(process)
        for each in others:
            each.terminate()
        deadline = monotonic() + END_SECONDS
        for each in others:
            with suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, deadline - monotonic()))
        return found


class _Orphan:
    """A worker that an earlier driver has started. Stands in for ``Popen``. in_order: it has said that it leaves."""

    def __init__(self, process: "psutil.Process"):
        self._process, self.in_order = process, False
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns None while the process runs; then 0 where it has left in order, else ``_UNKNOWN``."""
        import psutil

        if self.returncode is None:
            try:
                runs = self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                runs = False
            self.returncode = None if runs else 0 if self.in_order else _UNKNOWN
        return self.returncode

    def terminate(self) -> None:
        """Asks the process to leave."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process at once."""
        self._signal(signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Waits for the end. Raises TimeoutExpired."""
        deadline = monotonic() + timeout
        while self.poll() is None:
            if monotonic() > deadline:
                raise subprocess.TimeoutExpired("mlx-bulk worker", timeout)
            sleep(_POLL_SECONDS)

    def _signal(self, number: int) -> None:
        import psutil

        with suppress(psutil.NoSuchProcess):
            self._process.send_signal(number)


def _own_processes() -> "Iterator[tuple[psutil.Process, list[str], dict[str, str]]]":
    """Yields this user's other processes with their command lines and environments, without those of containers."""
    import psutil

    network = _network_of("self")
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended, or may not be read
            if process.pid != os.getpid() and process.uids().real == os.getuid() and _network_of(process.pid) == network:
                yield process, process.cmdline(), process.environ()


def _network_of(process: int | str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink()) if sys.platform == "linux" else ""


def _lasting(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line without the program, whose path may be told in two ways, and the values of ``_FREE``."""
    return [word for before, word in pairwise(words) if before not in _FREE]


def given_secret() -> str | None:
    """Returns the secret that this worker shares with the driver that has started it, None for others. Its own children do not get it."""
    return os.environ.pop(SECRET, None)


def _ended(code: int) -> str:
    if code == _UNKNOWN:
        return "is gone"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def worker_environment(number: int, count: int, threads: int | None) -> dict[str, str]:
    """Returns the variables that divide this machine's cores and GPUs: those of worker ``number`` of ``count``, counted from 0.

    The number of threads that the user has set is kept, unless ``threads`` gives one.
    """
    cores = usable_cores()
    part = str(threads or max(1, cores // count))
    divided = {name: part if threads else os.environ.get(name, part) for name in THREADS}
    gpus = _gpus()
    return divided | ({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {})


def _gpus() -> list[str]:
    """Lists the GPUs that this process may use, as CUDA names them; empty where there are none, or on a Mac, which has one."""
    if (listed := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(_GPUS.iterdir())] if _GPUS.is_dir() else []
