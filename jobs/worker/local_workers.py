"""Workers on the driver's own machine: processes of ``mlx-bulk worker --once``, among which cores and GPUs are divided.

One that dies is started again, unless it dies again and again before it has finished a row.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")  # of each library that may multiply
MOST_DEATHS = 3  # of a worker, in a row, without a finished row
LEAVES = {0, 2, *(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))}  # codes of a worker that is to stay away
END_SECONDS = 12.0  # for a worker to leave: its engine ends between two steps, its last frames are acked

_GPUS = Path("/proc/driver/nvidia/gpus")

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True)
class _LocalWorker:
    """A worker's process, and how often it has died since it finished a row. away: it is not started again. joined: the driver."""

    number: int
    process: subprocess.Popen[bytes]
    deaths: int = 0
    away: bool = False
    joined: bool = False

    @property
    def name(self) -> str:
        return f"local-{self.number + 1}"


class LocalWorkers:
    """``count`` workers that join the driver at ``address``; they are named local-1, local-2, … and log to this process's stderr.

    wait: seconds after which they leave when no driver is there, as when this process is killed. threads: of each worker's matrix
    products, None for its part of the cores. options: further options of ``mlx-bulk worker``.
    """

    def __init__(self, count: int, address: str, wait: float, threads: int | None = None, options: Sequence[str] = ()):
        self._command = [sys.executable, "-P", "-m", "mlx_bulk.jobs", "worker", address, "--once", "--wait", str(wait), *options]
        self._count, self._threads = count, threads
        self._workers = [_LocalWorker(number, self._start(number)) for number in range(count)]

    @property
    def ended(self) -> list[int]:
        """The exit codes of workers that have left already."""
        return [each.process.returncode for each in self._workers if each.process.poll() is not None]

    def note_joined(self, worker: str) -> None:
        """Notes that a worker with this name in messages has joined the driver."""
        for each in self._workers:
            each.joined |= worker.startswith(f"{each.name}-")

    def note_row(self, worker: str) -> None:
        """Notes that a worker with this name in messages has finished rows."""
        for each in self._workers:
            if worker.startswith(f"{each.name}-"):
                each.deaths = 0

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
            env={**os.environ, **worker_environment(number, self._count, self._threads)},
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
        for end in (lambda process: None, subprocess.Popen[bytes].terminate, subprocess.Popen[bytes].kill):
            deadline = monotonic() + END_SECONDS
            for each in self._workers:
                if each.process.poll() is None:
                    end(each.process)
            for each in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    each.process.wait(max(0.0, deadline - monotonic()))


def _ended(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def worker_environment(number: int, count: int, threads: int | None) -> dict[str, str]:
    """Returns the variables that divide this machine's cores and GPUs: those of worker ``number`` of ``count``, counted from 0.

    The number of threads that the user has set is kept, unless ``threads`` gives one.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    part = str(threads or max(1, cores // count))
    divided = {name: part if threads else os.environ.get(name, part) for name in THREADS}
    gpus = _gpus()
    return divided | ({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {})


def _gpus() -> list[str]:
    """Lists the GPUs that this process may use, as CUDA names them; empty where there are none, or on a Mac, which has one."""
    if (listed := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(_GPUS.iterdir())] if _GPUS.is_dir() else []
