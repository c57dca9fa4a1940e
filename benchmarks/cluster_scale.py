"""Measures what a driver of many workers costs: CPU a lease, share of a core, memory (USS) over time. Simulated workers, a real driver.

By default 64 workers do 10,000 leases of 10 seconds and 2 MB, which takes 26 minutes; after ``--minutes`` the figures are those of what is
done by then. Whether memory grows with leases, ``--seconds 1 --bytes 200000`` shows in 3 minutes: leases are shorter there, and bring as
many bytes a second. Parts are removed as they come, so that 20 GB of records need no such disk.

Counted from the first worker that was ready to the last row. The last line is JSON. ``growth`` is the mean of the driver's memory in
the last tenth of that time by the mean in the tenth after the middle; ``growth_mb`` is the difference.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster_runs.cluster_config import write
from racing.about import about, table

import psutil
from cluster_slow_worker import free_port, start, start_agents
from cluster_speed import is_complete

BOUNDS = {"cpu_ms_a_lease": 100.0, "core_share": 0.25, "peak_mb": 300.0, "growth": 1.05}
PROCESSES = 4  # that the workers are divided among
LOOK_SECONDS, KEPT_SECONDS = 0.5, 20.0  # between two looks at the driver; that a part stays on the disk


def main() -> None:
    """Runs one job and watches its driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a lease")
    parser.add_argument("--bytes", type=int, default=2_000_000, help="that come back for a lease")
    parser.add_argument("--rows", type=int, default=100, help="of a lease")
    parser.add_argument("--minutes", type=float, default=30.0, help="from the first worker that is ready; then it ends as it is")
    parser.add_argument("--check", action="store_true", help="exit 1 where the driver takes more than the bounds, or leases are left")
    args = parser.parse_args()
    print(f"{args.leases} leases take {args.leases * args.seconds / args.workers / 60:.1f} minutes, {args.minutes:g} at most", flush=True)
    with tempfile.TemporaryDirectory(dir=".") as name:
        figures = measured(args, Path(name).absolute())
    missed = [name for name, most in BOUNDS.items() if figures[name] > most]
    missed += ["leases_done"] if figures["leases_done"] < args.leases else []
    print(json.dumps({**figures, "missed": missed, **vars(args), **about()}))
    sys.exit(1 if args.check and missed else 0)


def measured(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs the job; prints memory over time, and returns the figures. Raises RuntimeError where the driver or a worker fails."""
    port = free_port()
    cluster = {"listen": f"127.0.0.1:{port}", "min_workers": args.workers, "lease_seconds": args.seconds}
    config = write(folder, args.leases * args.rows, cluster=cluster)
    about_all = {"address": f"tcp://127.0.0.1:{port}", "pace": args.rows / args.seconds, "room": max(1, args.rows // 4)}
    agents = [{**about_all, "name": f"w{number}", "row_bytes": args.bytes // args.rows // 2} for number in range(args.workers)]
    processes = [start(config), *(start_agents(agents[first::PROCESSES]) for first in range(min(PROCESSES, args.workers)))]
    run = config.parent / "run"
    try:
        seen = watched(config, processes, args.minutes * 60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [json.loads(line) for line in (run / "workers.jsonl").read_text().splitlines()]
    rows = sum(line.get("rows", 0) for line in lines)
    steps = [seen[len(seen) * tenth // 10] for tenth in range(10)] + [seen[-1]]
    table({f"{took:.0f} s": (f"{cpu:.1f}", f"{memory / 1e6:.0f}") for took, cpu, memory in steps}, ["CPU seconds", "MB"])
    took, cpu, _ = seen[-1]
    middle, last = memory_in(seen, 5), memory_in(seen, 9)
    return {
        "complete": is_complete(run),
        "leases_done": rows // args.rows,
        "took": round(took, 1),
        "cpu_ms_a_lease": round(1000 * cpu * args.rows / max(1, rows), 2),
        "core_share": round(cpu / took, 4),
        "peak_mb": round(max(memory for _, _, memory in seen) / 1e6, 1),
        "growth": round(last / middle, 3),
        "growth_mb": round((last - middle) / 1e6, 1),
        "begun_again_share": round(sum(line.get("again", 0) for line in lines) / max(1, rows), 4),
    }


def watched(config: Path, processes: "list[subprocess.Popen[str]]", most: float) -> list[tuple[float, float, int]]:
    """Returns seconds, CPU seconds and memory of the driver, the first process, time after time, until the last row is in its part."""
    driver, run = psutil.Process(processes[0].pid), config.parent / "run"

    def require_alive() -> None:
        for process in processes:
            if process.poll() is not None and not is_complete(run):
                log = (config.parent / "log").read_text()[-2000:]
                raise RuntimeError(f"{process.args}: exit code {process.returncode}\n{log}")

    while not (run / "workers.jsonl").exists():
        require_alive()
        time.sleep(0.05)
    begun, before, seen = time.monotonic(), sum(driver.cpu_times()[:2]), list[tuple[float, float, int]]()
    with suppress(psutil.Error):  # it ends after the last row
        while not seen or not (is_complete(run) or seen[-1][0] > most):
            require_alive()
            seen.append((time.monotonic() - begun, sum(driver.cpu_times()[:2]) - before, driver.memory_full_info().uss))
            remove_old(run / "results")
            time.sleep(LOOK_SECONDS)
    return seen


def memory_in(seen: list[tuple[float, float, int]], tenth: int) -> float:
    """The mean memory in a tenth of the time, from 0."""
    some = seen[len(seen) * tenth // 10 : max(len(seen) * tenth // 10 + 1, len(seen) * (tenth + 1) // 10)]
    return sum(memory for _, _, memory in some) / len(some)


def remove_old(parts: Path) -> None:
    """Removes parts that have been there for some time."""
    for path in parts.glob("*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()


if __name__ == "__main__":
    main()
