"""Measures what a worker takes that has joined a driver and has nothing to do: memory, and share of a core.

The last line is JSON. Exit 1 where it takes more than 60 MB (resident, shared libraries included) or 1 % of a core.
"""

import argparse
import json
import subprocess
import sys
import time

from cluster_runs.cluster_processes import COMMAND, ENVIRONMENT
from racing.about import about, table

import psutil

BOUNDS = {"mb": 60.0, "core_share": 0.01}
JOIN_SECONDS = 60.0


def main() -> None:
    """Measures once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of waiting")
    args = parser.parse_args()
    found = measured(args.seconds)
    table({"a worker that waits": (found["mb"], found["own_mb"], f"{found['core_share']:.2%}")}, ["MB", "of its own", "of a core"])
    missed = [name for name, most in BOUNDS.items() if found[name] > most]
    print(json.dumps({**found, "missed": missed, "seconds": args.seconds, **about()}))
    sys.exit(1 if missed else 0)


def measured(seconds: float) -> dict[str, float]:
    """Returns the figures of a worker that has joined and waits."""
    from mlx_bulk.runner.cluster.interface import Joined
    from mlx_bulk.runner.network.dask_fleet import DaskFleet

    fleet = DaskFleet("127.0.0.1:0")
    agent = subprocess.Popen([*COMMAND, "worker", fleet.address, "--once", "--quiet"], env=ENVIRONMENT)
    try:
        due = time.monotonic() + JOIN_SECONDS
        while not any(isinstance(event, Joined) for event in fleet.events(1.0)):
            if agent.poll() is not None or time.monotonic() > due:
                raise RuntimeError("the worker does not join")
        time.sleep(2.0)
        process, begun = psutil.Process(agent.pid), time.monotonic()
        before = sum(process.cpu_times()[:2])
        while time.monotonic() < begun + seconds:
            fleet.events(1.0)
        share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begun)
        memory = process.memory_full_info()
        return {"mb": round(memory.rss / 1e6, 1), "own_mb": round(memory.uss / 1e6, 1), "core_share": round(share, 5)}
    finally:
        fleet.end(dismiss=True)
        agent.kill()
        agent.wait()


if __name__ == "__main__":
    main()
