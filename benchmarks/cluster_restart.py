"""Kills the driver of a run over workers and starts it again: how long until the next commit, and what is loaded or begun again.

Each time the driver has committed shards before, and all workers are at work. The last line is JSON; exit 1 where a worker has loaded
its model again, where the run is not sound at the end, or, with --bound, where a first commit came later than so many seconds, or more
rows were begun again than all workers do in ``output.fsync_seconds`` for each kill. Copies of slow workers' rows do not count there.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cluster_runs.cluster_processes import COMMAND, ENVIRONMENT, Field
from racing.about import about, table

from cluster_faults import FSYNC_SECONDS, PER_SHARD_ROWS, begun_again, write

READY = ": ready"  # in what a worker says once it has loaded a run's model
SLOW = "slow worker"  # a cause for which rows are begun again
PATIENCE = 300.0  # seconds


def main() -> None:
    """Kills the driver some times, and lets the run end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--bound", type=float, help="seconds from the start to the first commit; on an idle machine 5")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.exit(restart(args, Path(name)))


def restart(args: argparse.Namespace, root: Path) -> int:
    """Does the run; returns the exit code."""
    (root / "cluster").mkdir()
    field = Field(root / "cluster", args.workers, random.Random(0))
    took, loads, wrong, again, first = list[float](), 0, list[str](), Counter[str](), time.monotonic()
    try:
        run = write(root / "cluster", args.rows, False, field.port)
        field.start_driver()
        for _ in range(args.kills):
            # Each worker must have loaded its model, and this driver must have taken rows of its own.
            until(field, lambda: commits(run) > 2 * len(took) and loaded(field) >= args.workers)
            before = commits(run)
            field.kill_driver()
            begun = time.monotonic()
            field.start_driver()
            until(field, lambda before=before: commits(run) > before)
            took.append(round(time.monotonic() - begun, 2))
        assert field.driver is not None
        if (code := field.driver.wait(PATIENCE)) != 0:
            wrong.append(f"the driver ended with {code}")
        loads = loaded(field) - args.workers
        verified = subprocess.run([*COMMAND, "verify", str(run)], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        wrong += [] if verified.returncode == 0 else [f"verify: {verified.returncode}: {verified.stdout}{verified.stderr}"]
        again, most = begun_again(run), args.kills * FSYNC_SECONDS * args.rows / (time.monotonic() - first)
        if args.bound is not None and again.total() - again[SLOW] > most:
            wrong.append(f"{again.total() - again[SLOW]} rows were begun again after a kill, {most:.0f} may be: {dict(again)}")
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        wrong.append(str(error))
    finally:
        field.end()
    wrong += [f"{loads} models were loaded again"] * (loads > 0)
    if args.bound is not None and max(took, default=args.bound) > args.bound:
        wrong.append(f"a first commit came after {max(took)} s")
    table({f"start {number}": (f"{seconds:.2f}",) for number, seconds in enumerate(took, 1)}, ["seconds to the first commit"])
    figures = {"first_commits": took, "loads": loads, "begun_again": dict(again), "wrong": wrong}
    print(json.dumps({**figures, "workers": args.workers, "rows": args.rows, "shard": PER_SHARD_ROWS, **about()}))
    return 1 if wrong else 0


def commits(run: Path) -> int:
    """The lines of the run's commit log."""
    path = run / "commits.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def loaded(field: Field) -> int:
    """How often a worker has said that its model is loaded."""
    return sum(READY in line for line in field.log_lines())


def until(field: Field, done: Callable[[], bool]) -> None:
    """Waits. Raises TimeoutError where the run ends before, or nothing comes of it for long."""
    due = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > due or field.driver is None or field.driver.poll() is not None:
            raise TimeoutError("the run has ended too early; give it more --rows" if time.monotonic() < due else "the run hangs")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
