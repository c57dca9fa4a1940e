"""How many cores this process may use: in a container it sees all cores of the machine, and its quota is less."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Counts the cores that this process may use: those of its affinity, within the quotas of its cgroups, rounded up.

    cgroups: where they are mounted; own: the file that names those of this process.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min([cores, *(ceil(quota) for quota in _quotas(cgroups, own))]))


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Yields the quota of each cgroup that has one, in cores: of versions 2 and 1, the process's own and those around it."""
    with suppress(OSError, ValueError):
        quota, period = (int((cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:
            yield quota / period
    folder = cgroups
    with suppress(OSError, StopIteration):
        folder = cgroups / next(line[3:].strip("/\n") for line in own.read_text().splitlines() if line.startswith("0::"))
    for each in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, (each / "cpu.max").read_text().split())
            yield quota / period
        if each == cgroups:
            return
