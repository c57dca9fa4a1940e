"""Workers on the driver's own machine: processes of ``mlx-bulk worker --once``, among which cores and GPUs are divided."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")  # of each library that may multiply
END_SECONDS = 12.0  # for a worker to leave: its engine ends between two steps, its last frames are acked

_GPUS = Path("/proc/driver/nvidia/gpus")


class LocalWorkers:
    """``count`` workers that join the driver at ``address``; they are named local-1, local-2, … and log to this process's stderr.

    wait: seconds after which they leave when no driver is there, as when this process is killed. threads: of each worker's matrix
    products, None for its part of the cores. options: further options of ``mlx-bulk worker``.
    """

    def __init__(self, count: int, address: str, wait: float, threads: int | None = None, options: Sequence[str] = ()):
        command = [sys.executable, "-P", "-m", "mlx_bulk.jobs", "worker", address, "--once", "--wait", str(wait), *options]
        self._processes = [
            subprocess.Popen(
                [*command, "--name", f"local-{number + 1}"],
                env={**os.environ, **worker_environment(number, count, threads)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a signal from the terminal is for the driver, which ends them in order
            )
            for number in range(count)
        ]

    @property
    def ended(self) -> list[int]:
        """The exit codes of workers that have left already."""
        return [process.returncode for process in self._processes if process.poll() is not None]

    def end(self) -> None:
        """Waits until the workers, which the driver has dismissed, have left; ends those that do not."""
        for end in (lambda process: None, subprocess.Popen[bytes].terminate, subprocess.Popen[bytes].kill):
            deadline = monotonic() + END_SECONDS
            for process in self._processes:
                if process.poll() is None:
                    end(process)
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - monotonic()))


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
