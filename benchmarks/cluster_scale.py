"""Measures what a driver of many workers costs: CPU a lease, share of a core, memory (USS) over time. Simulated workers, a real driver.

By default 64 workers do leases of 10 seconds and 2 MB, as many as ``--leases`` says: 10,000 take 26 minutes and 20 GB of disk, 1,000
take 3 minutes. Whether memory grows with leases, ``--leases 10000 --seconds 1 --bytes 200000`` shows in 3 minutes: leases are shorter
there, and bring as many bytes a second. Counted from the first worker that was ready to the last row. The last line is JSON:
``growth`` is the memory at the end by that in the middle.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from about import about, table
from cluster_config import write
from cluster_slow_worker import finish, free_port, start, start_agents
from cluster_speed import is_complete

PROCESSES = 4  # that the workers are divided among


def main() -> None:
    """Runs one job and watches its driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a lease")
    parser.add_argument("--bytes", type=int, default=2_000_000, help="that come back for a lease")
    parser.add_argument("--rows", type=int, default=100, help="of a lease")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        print(json.dumps({**measured(args, Path(name).absolute()), **vars(args), **about()}))


def measured(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs the job; prints memory over time, and returns the figures."""
    port = free_port()
    cluster = {"listen": f"127.0.0.1:{port}", "min_workers": args.workers, "lease_seconds": args.seconds}
    config = write(folder, args.leases * args.rows, cluster=cluster)
    about_all = {"address": f"tcp://127.0.0.1:{port}", "pace": args.rows / args.seconds, "room": max(1, args.rows // 4)}
    agents = [{**about_all, "name": f"w{number}", "row_bytes": args.bytes // args.rows // 2} for number in range(args.workers)]
    processes = [start(config), *(start_agents(agents[first::PROCESSES]) for first in range(PROCESSES))]
    driver, run = psutil.Process(processes[0].pid), config.parent / "run"
    while processes[0].poll() is None and not (run / "workers.jsonl").exists():
        time.sleep(0.05)
    begun, before, seen = time.monotonic(), sum(driver.cpu_times()[:2]), list[tuple[float, float, int]]()
    while processes[0].poll() is None and not is_complete(run):
        seen.append((time.monotonic() - begun, sum(driver.cpu_times()[:2]) - before, driver.memory_full_info().uss))
        time.sleep(0.5)
    lines = [json.loads(line) for line in (run / "workers.jsonl").read_text().splitlines()]
    finish(config, *processes)
    leases = sum("rows" in line for line in lines)
    steps = [seen[len(seen) * tenth // 10] for tenth in range(10)] + [seen[-1]]
    table({f"{took:.0f} s": (f"{cpu:.1f}", f"{memory / 1e6:.0f}") for took, cpu, memory in steps}, ["CPU seconds", "MB"])
    took, cpu, last = seen[-1]
    middle = seen[len(seen) // 2][2]
    return {
        "leases_done": leases,
        "took": round(took, 1),
        "cpu_ms_a_lease": round(1000 * cpu / leases, 2),
        "core_share": round(cpu / took, 4),
        "peak_mb": round(max(memory for _, _, memory in seen) / 1e6, 1),
        "growth": round(last / middle, 3),
        "begun_again_share": round(sum(line.get("again", 0) for line in lines) / (args.leases * args.rows), 4),
    }


if __name__ == "__main__":
    main()
