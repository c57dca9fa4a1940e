"""Kills an agent and an engine of a run over workers: how soon the driver knows, and others have the rows.

Each kill is dealt in a run of its own, once each worker has finished rows. ``agent: told`` are the seconds from an agent's death until
the driver says that it has left; ``agent: rows given`` those until the first rows that it had begun are given to another worker, as
``workers.jsonl`` tells. An engine's rows stay with its agent, which starts another one, so that there is ``engine: told`` alone.

The table has medians and the most; the last line is JSON. Exit 1 where the most of one is beyond its bound.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster_runs.cluster_config import write
from cluster_runs.cluster_processes import Field
from racing.about import about, table

from cluster_restart import until

LOST = "lost worker"  # a cause for which rows are begun again
PHASE_SECONDS = 3.0  # a kill comes at any time between two reports of a worker


def main() -> None:
    """Measures all and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="of agents, and of engines")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="of a run, which must not end before it is measured")
    parser.add_argument("--lease-seconds", type=float, default=20.0, help="cluster.lease_seconds; 20 is what a run has by itself")
    parser.add_argument("--told", type=float, default=1.0, help="bound in seconds: a death is told")
    parser.add_argument("--given", type=float, default=2.0, help="bound in seconds: another worker has its rows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.exit(measure(args, Path(name).resolve()))


def measure(args: argparse.Namespace, root: Path) -> int:
    """Returns the exit code."""
    draw, found = random.Random(0), dict[str, list[float]]()
    for kill in range(args.kills):
        for label, seconds in deaths(args, root / f"kill-{kill}", draw).items():
            found.setdefault(label, []).append(seconds)
    bounds = {
        "agent: told": args.told,
        "agent: rows given": args.given,
        "engine: told": args.told,
    }
    most = {label: max(each) for label, each in found.items()}
    wrong = [f"{label}: after {most[label]:.2f} s, the bound is {bound:g}" for label, bound in bounds.items() if most[label] > bound]
    table(
        {label: (f"{statistics.median(each):.2f}", f"{most[label]:.2f}", bounds.get(label)) for label, each in found.items()},
        ["median s", "most s", "bound"],
    )
    seconds = {label: [round(value, 3) for value in each] for label, each in found.items()}
    settings = {"workers": args.workers, "lease_seconds": args.lease_seconds, "bounds": bounds}
    print(json.dumps({"seconds": seconds, "wrong": wrong, **settings, **about()}))
    return 1 if wrong else 0


def deaths(args: argparse.Namespace, folder: Path, draw: random.Random) -> dict[str, float]:
    """Kills an agent, and then the engine of another worker. Returns the seconds until each was known."""
    folder.mkdir()
    field = Field(folder, args.workers, draw)
    try:
        sections = {"sampling": {"max_tokens": 64, "temperature": 0}, "batch": {"rows": 16}}
        write(folder, args.rows, **sections, cluster={"listen": f"127.0.0.1:{field.port}", "lease_seconds": args.lease_seconds})
        ledger = folder / "run" / "workers.jsonl"
        field.start_driver()
        until(field, lambda: len({line["worker"] for line in lines_of(ledger) if "rows" in line}) == args.workers)
        time.sleep(draw.uniform(0.0, PHASE_SECONDS))
        first, second = (name_of(field, number) for number in (0, 1))
        begun = time.monotonic()
        field.kill_agent(0)
        told = since(begun, field, lambda: is_said(field, f"{first} has left"))
        given = since(begun, field, lambda: any(line.get("cause") == LOST and line["worker"] != first for line in lines_of(ledger)))
        begun = time.monotonic()
        if not field.kill_engine(1):
            raise RuntimeError("a worker at work has no engine")
        engine = since(begun, field, lambda: is_said(field, f"{second}: the process died of SIGKILL"))
    finally:
        field.end()
    return {"agent: told": told, "agent: rows given": given, "engine: told": engine}


def lines_of(ledger: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines."""
    text = ledger.read_text() if ledger.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def name_of(field: Field, number: int) -> str:
    """What the driver calls a worker."""
    (name,) = {found[0] for line in field.log_lines() if (found := re.search(rf"\bw{number}-\S+(?= works on the run)", line))}
    return name


def is_said(field: Field, text: str) -> bool:
    """Returns True once some process has said it."""
    return any(text in line for line in field.log_lines())


def since(begun: float, field: Field, done: Callable[[], bool]) -> float:
    """Waits, and returns the seconds since ``begun``."""
    until(field, done)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
