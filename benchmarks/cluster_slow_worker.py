"""Measures what slow workers cost a run: simulated workers and a real driver, against the least time that they could take.

The last line is JSON. ``over_ideal`` is the part by which the run took longer than rows / (sum of paces), from the first worker that was
ready to the last commit. Rows are waited for, not computed, so that two cores are enough.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster_runs.cluster_config import write
from racing.about import about, table

HERE = Path(__file__).parent
OVER = 0.1  # bound


def start(config: Path) -> "subprocess.Popen[str]":
    """Starts the driver."""
    command = [sys.executable, "-m", "mlx_bulk.jobs", "run", str(config)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(config.parent / "log").open("w"), text=True)


def start_agents(agents: list[dict[str, Any]]) -> "subprocess.Popen[str]":
    """Starts a process of simulated workers."""
    process = subprocess.Popen([sys.executable, str(HERE / "simulated_agents.py")], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(agents) + "\n")
    process.stdin.flush()
    return process


def finish(config: Path, *processes: "subprocess.Popen[str]") -> None:
    """Waits for the driver, the first process, and ends the workers. Raises RuntimeError where one fails before."""
    driver, *workers = processes
    while driver.poll() is None and not any(process.poll() for process in workers):
        time.sleep(0.05)
    failed = [process for process in processes if process.poll()]
    for process in processes:
        process.kill()
        process.wait()
    for process in failed:
        raise RuntimeError(f"{process.args}: exit code {process.returncode}\n{(config.parent / 'log').read_text()[-2000:]}")


def seconds(paces: list[float], rows: int, room: int, lease_seconds: float) -> tuple[float, float]:
    """Runs the job; returns the seconds from the first worker that was ready to the last commit, and the share of rows begun again."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        port = free_port()
        config = write(
            Path(name).absolute(),
            rows,
            cluster={"listen": f"127.0.0.1:{port}", "min_workers": len(paces), "lease_seconds": lease_seconds},
        )
        named = [{"name": f"w{number}", "pace": pace} for number, pace in enumerate(paces)]
        agents = [{"address": f"tcp://127.0.0.1:{port}", "room": room, "row_bytes": 100, **each} for each in named]
        processes, run = [start(config), start_agents(agents)], config.parent / "run"
        while not any(process.poll() for process in processes) and not (run / "sessions.jsonl").exists():
            time.sleep(0.01)
        begun = time.time()
        finish(config, *processes)
        lines = [json.loads(line) for line in (run / "workers.jsonl").read_text().splitlines()]
        return (run / "commits.jsonl").stat().st_mtime - begun, sum(line.get("again", 0) for line in lines) / rows


def free_port() -> int:
    """Returns a port that nobody listens at."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Runs one job and prints how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paces", type=float, nargs="+", default=[60.0, 60.0, 6.0], help="rows a second of each worker")
    parser.add_argument("--seconds", type=float, default=60.0, help="the least time that the workers could take")
    parser.add_argument("--room", type=int, default=32, help="rows that an engine has at once")
    parser.add_argument("--lease-seconds", type=float, default=20.0)
    parser.add_argument("--check", action="store_true", help=f"exit 1 where it took longer than the ideal by more than {OVER:.0%}%")
    args = parser.parse_args()
    rows = round(args.seconds * sum(args.paces))
    took, again = seconds(args.paces, rows, args.room, args.lease_seconds)
    ideal = rows / sum(args.paces)
    table(
        {" ".join(f"{pace:g}" for pace in args.paces): (f"{took:.1f}", f"{ideal:.1f}", f"{100 * again:.1f} %")},
        ["seconds", "ideal", "begun again"],
    )
    figures = {
        "over_ideal": round(took / ideal - 1, 4),
        "begun_again_share": round(again, 4),
        "seconds": took,
        "ideal": ideal,
        "rows": rows,
    }
    print(json.dumps({**figures, "paces": args.paces, "room": args.room, "lease_seconds": args.lease_seconds, **about()}))
    sys.exit(1 if args.check and took / ideal - 1 > OVER else 0)


if __name__ == "__main__":
    main()
