"""Pulls the cable of one of three workers: how soon the driver is told, and how fast the others go on meanwhile.

Needs root, as it drops packets without a word in a network namespace of its own. The last line is JSON; exit 1 unless the driver is
told within 35 s (``cluster.lost_after`` is 30) and the others keep 95 % of their pace. Workers are simulated, a process each: they wait
for their rows, so that those that stay cannot gain from the cores of the one that goes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cluster_runs.cluster_config import write
from racing.about import about

import psutil
from cluster_slow_worker import start, start_agents

PORT = 8786
SETTLE_SECONDS, LOOK_SECONDS = 5.0, 0.05
TOLD, PACE = 35.0, 0.95  # bounds
ROWS_A_SECOND, ROOM, ROWS = 60.0, 32, 100_000  # of a worker; rows that it has at once; of the run, which does not end meanwhile


def ip(*arguments: str) -> None:
    """Runs ``ip``."""
    subprocess.run(("ip", *arguments), check=True)


def pull(agent: int) -> None:
    """Has all packets of an agent's connection dropped."""
    (own,) = [each.laddr.port for each in psutil.Process(agent).net_connections() if each.raddr and each.raddr.port == PORT]
    ip("rule", "add", "pref", "100", "lookup", "local")
    ip("rule", "del", "pref", "0")
    for end in ("sport", "dport"):
        ip("rule", "add", "pref", "1", "ipproto", "tcp", end, str(own), "blackhole")


def rows_of_others(run: Path) -> Counter[str]:
    """How many rows each worker has done whose cable stays."""
    rows = Counter[str]()
    for line in (run / "workers.jsonl").read_text().splitlines():
        if (read := json.loads(line))["worker"] != "w0":
            rows[read["worker"]] += read.get("rows", 0)
    return rows


def pace_until(run: Path, over: Callable[[], bool]) -> float:
    """Returns the rows a second of the workers whose cable stays, until ``over``: of each from one report to another."""
    seen: dict[str, list[tuple[float, int]]] = {}
    while not over():
        for worker, rows in rows_of_others(run).items():
            reports = seen.setdefault(worker, [])
            if not reports or reports[-1][1] != rows:
                reports.append((time.monotonic(), rows))
        time.sleep(LOOK_SECONDS)
    return sum((each[-1][1] - each[1][1]) / (each[-1][0] - each[1][0]) for each in seen.values())


def until(log: Path, text: str, times: int, seconds: float) -> float:
    """Waits until the log has a text so many times; returns the seconds."""
    begun = time.monotonic()
    while log.read_text().count(text) < times:
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"the driver did not say {text!r} within {seconds:.0f} s:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
    return time.monotonic() - begun


def main() -> None:
    """Measures once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=float, default=30.0, help="seconds over which the pace before is measured")
    args = parser.parse_args()
    if Path("/proc/self/ns/net").readlink() == Path(f"/proc/{os.getppid()}/ns/net").readlink():
        sys.exit(subprocess.run(("unshare", "-n", sys.executable, *sys.argv), check=False).returncode)
    ip("link", "set", "lo", "up")
    with tempfile.TemporaryDirectory() as name:
        sys.exit(measure(Path(name), args.before))


def measure(root: Path, before: float) -> int:
    """Does the run; returns the exit code."""
    config = write(root / "job", ROWS, cluster={"listen": f"127.0.0.1:{PORT}"})
    run, log, driver = root / "job" / "run", root / "job" / "log", start(config)
    each = {"address": f"tcp://127.0.0.1:{PORT}", "pace": ROWS_A_SECOND, "room": ROOM, "row_bytes": 100}
    agents = [start_agents([{"name": f"w{number}", **each}]) for number in range(3)]
    try:
        until(log, "works on the run", 3, 120)
        time.sleep(SETTLE_SECONDS)
        due = time.monotonic() + before
        first = pace_until(run, lambda: time.monotonic() > due)
        begun = time.monotonic()
        pull(agents[0].pid)
        second = pace_until(run, lambda: "has left" in log.read_text() or time.monotonic() > begun + 2 * TOLD)
        told = time.monotonic() - begun
        pace = second / first
    finally:
        for process in (driver, *agents):
            process.kill()
    print(json.dumps({"told_after_seconds": round(told, 1), "pace_of_others": round(pace, 3), **about()}))
    return 0 if told <= TOLD and pace >= PACE else 1


if __name__ == "__main__":
    main()
