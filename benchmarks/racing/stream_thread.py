"""What the main thread and the thread that computes mlx's operations do, step by step: compute, sleep, or wait for a processor. Linux.

    wall time   computing | waiting for a processor that other work has | asleep
                                                                          ^^^^^^ nothing to compute: it waits for the host

Other work on the machine makes a step longer, but then the thread does not sleep: it waits for a processor. So its sleep is the device's
waiting for the host, except where other work holds the host's thread up; ``Piece.disturbed`` tells of that. Each of the two threads gets
a processor of its own, as on one they take turns and nothing overlaps.
"""

import os
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from networks.shapes import mx

TASKS = Path("/proc/self/task")
STEPS = 8  # of a piece


@dataclass(slots=True, frozen=True)
class Piece:
    """Some steps. Seconds a step: wall time, the host's computing, the device's sleep. disturbed: wall times that threads have waited."""

    step: float
    host: float
    asleep: float
    disturbed: float


class StepClock:
    """Is called once a step, as what tells an engine whether to stop: never. The device's thread has computed before."""

    def __init__(self):
        host = threading.main_thread().native_id
        assert host is not None
        known = {int(task.name) for task in TASKS.glob("*")} - {host}
        before = {thread: _computed(thread) for thread in known}
        square = mx.ones((512, 512))
        mx.eval(square @ square @ square)
        self._threads = host, max(known, key=lambda thread: _computed(thread) - before[thread])
        self._before: list[set[int]] = []
        self._calls, self._seen = 0, list[tuple[float, ...]]()

    def __enter__(self) -> "StepClock":
        """Gives each of the two threads a processor of its own."""
        self._before = [os.sched_getaffinity(thread) for thread in self._threads]
        for thread, processor in zip(self._threads, sorted(os.sched_getaffinity(0)), strict=False):
            os.sched_setaffinity(thread, {processor})
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them all that they had."""
        for thread, processors in zip(self._threads, self._before, strict=True):
            os.sched_setaffinity(thread, processors)

    def __call__(self) -> bool:
        """Notes the times of every ``STEPS``-th call."""
        if self._calls % STEPS == 0:
            self._seen.append((time.perf_counter(), *map(_computed, self._threads), *map(_waited, self._threads)))
        self._calls += 1
        return False

    def pieces(self, skip: int) -> list[Piece]:
        """Returns what was noted after the first ``skip`` calls."""
        found = list[Piece]()
        seen = self._seen[-(-skip // STEPS) :]
        for before, after in pairwise(seen):
            wall, host, device, host_waited, device_waited = (b - a for a, b in zip(before, after, strict=True))
            asleep = max(0.0, wall - device - device_waited)
            found.append(Piece(wall / STEPS, host / STEPS, asleep / STEPS, (host_waited + device_waited) / wall))
        return found


def _computed(thread: int) -> float:
    """Seconds of processor time."""
    return time.clock_gettime((~thread << 3) | 6)  # the kernel's name for the clock of one thread


def _waited(thread: int) -> float:
    """Seconds for which a thread was ready and had no processor."""
    return 1e-9 * int((TASKS / str(thread) / "schedstat").read_text().split()[1])
