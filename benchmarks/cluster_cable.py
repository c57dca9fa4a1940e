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
from pathlib import Path

import psutil
from about import about
from cluster_config import write
from cluster_slow_worker import start, start_agents

PORT = 8786
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


def rows_of_others(run: Path) -> int:
    """How many rows the workers whose cable stays have done."""
    lines = [json.loads(line) for line in (run / "workers.jsonl").read_text().splitlines()] if (run / "workers.jsonl").exists() else []
    return sum(line.get("rows", 0) for line in lines if line["worker"] != "w0")


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
        time.sleep(5)
        first = rows_of_others(run)
        time.sleep(before)
        second = rows_of_others(run)
        pull(agents[0].pid)
        told = until(log, "has left", 1, 2 * TOLD)
        pace = (rows_of_others(run) - second) / told / ((second - first) / before)
    finally:
        for process in (driver, *agents):
            process.kill()
    print(json.dumps({"told_after_seconds": round(told, 1), "pace_of_others": round(pace, 3), **about()}))
    return 0 if told <= TOLD and pace >= PACE else 1


if __name__ == "__main__":
    main()
