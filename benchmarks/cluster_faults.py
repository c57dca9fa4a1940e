"""Kills a run over workers at random, again and again, and proves what is left: no row lost, none twice, the bytes of a plain run.

Each blow hits the driver (1 in 4), an engine, an agent, or the cable between a worker and the driver. A run that is complete is
verified, compared with a plain run, and begun anew until all blows are dealt. The last line is JSON; exit 1 where anything is wrong.
200 blows take some twelve minutes.
With --rollouts a trainer writes a new policy every few seconds: each group must be whole, and each shard of one policy.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from about import about
from cluster_processes import COMMAND, DEMO, ENVIRONMENT, Field, Trainer

SAMPLES, PER_SHARD = 4, 16  # of rollouts


def write(folder: Path, rows: int, deterministic: bool, port: int | None, watch: Path | None = None) -> Path:
    """Writes the input and the config of a run into ``folder``. port: where its driver listens; None for a plain run.

    watch: the folder of a trainer, for rollouts.
    """
    folder.mkdir(exist_ok=True)
    path = folder.parent / "rows.jsonl"
    path.write_text("".join(json.dumps({"q": f"Tell me about {' '.join(['things'] * (1 + row % 9))} {row}"}) + "\n" for row in range(rows)))
    config: dict[str, Any] = {
        "job": "generate",
        "model": {"path": str(DEMO)},
        "data": {"path": str(path)},
        "prompt": {"text": "{{ q }}"},
        "sampling": {"max_tokens": 12, "temperature": 0},
        "batch": {"rows": 16, "rows_per_shard": 64, "deterministic": deterministic},
        "output": {"path": str(folder / "run"), "fsync_seconds": 1},
    }
    if watch is not None:
        sampling = {"n": SAMPLES, "max_tokens": 12, "temperature": 1.0}
        config |= {"job": "rollout", "sampling": sampling, "rewards": [{"fn": "length"}], "policy": {"watch": str(watch)}}
        config["batch"]["rows_per_shard"] = PER_SHARD
    if port is not None:
        config["cluster"] = {"listen": f"127.0.0.1:{port}", "lease_seconds": 2, "wait": 120}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "run"


def parts(run: Path) -> dict[str, bytes]:
    """The bytes of each part, by its name."""
    return {path.name.split(".")[0]: path.read_bytes() for path in sorted((run / "results").iterdir())}


def completions(run: Path) -> list[tuple[int, str]]:
    """Row and completion of each record, as they stand in the parts."""
    found: list[tuple[int, str]] = []
    for path in sorted((run / "results").iterdir()):
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        found += zip(table["row"].to_pylist(), table["completion"].to_pylist(), strict=True)
    return found


def begun_again(run: Path) -> int:
    """How many rows, at most, were begun more than once."""
    lines = [json.loads(line) for line in (run / "workers.jsonl").read_text().splitlines()]
    return sum(line.get("again", 0) for line in lines)


def examine(run: Path, plain: Path, rows: int, deterministic: bool) -> list[str]:
    """Returns what is wrong with a complete run."""
    verified = subprocess.run([*COMMAND, "verify", str(run)], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    wrong = [] if verified.returncode == 0 else [f"verify: {verified.returncode}: {verified.stdout}{verified.stderr}"]
    if deterministic:
        return wrong + ([] if parts(run) == parts(plain) else ["the parts are not those of a plain run"])
    ours, theirs = completions(run), completions(plain)
    if [row for row, _ in ours] != list(range(rows)):
        wrong.append("rows are lost, doubled or out of order")
    different = sum(a != b for a, b in zip(ours, theirs, strict=False))
    return wrong + ([f"{different} completions are not those of a plain run"] if different > rows / 500 else [])


def examine_rollouts(run: Path, rows: int) -> tuple[list[str], int]:
    """Returns what is wrong with a complete run of rollouts, and how many policies have sampled."""
    verified = subprocess.run([*COMMAND, "verify", str(run)], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    wrong = [] if verified.returncode == 0 else [f"verify: {verified.returncode}: {verified.stdout}{verified.stderr}"]
    places, policies = list[tuple[int, int]](), dict[int, set[str]]()
    for path in sorted((run / "results").iterdir()):
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        places += zip(table["row"].to_pylist(), table["sample"].to_pylist(), strict=True)
        for row, sha in zip(table["row"].to_pylist(), table["policy_sha"].to_pylist(), strict=True):
            policies.setdefault(row // PER_SHARD, set()).add(sha)
    if places != [(row, sample) for row in range(rows) for sample in range(SAMPLES)]:
        wrong.append("groups are not whole, or lost, doubled or out of order")
    if mixed := [shard for shard, own in policies.items() if len(own) > 1]:
        wrong.append(f"shards of several policies: {mixed}")
    return wrong, len(set[str]().union(*policies.values()))


def main() -> None:
    """Deals the blows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=2.5, help="mean seconds between two blows")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no blows after so many; the run at hand is finished")
    parser.add_argument("--deterministic", action="store_true", help="parts must be the same bytes as a plain run's")
    parser.add_argument("--rollouts", action="store_true", help="rollouts, under policies that a trainer writes meanwhile")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.exit(strike_all(args, Path(name)))


def strike_all(args: argparse.Namespace, root: Path) -> int:
    """Does all runs; returns the exit code."""
    plain, trainer, watch = write(root / "plain", args.rows, args.deterministic, None), None, None
    if args.rollouts:
        watch = root / "adapters"
        trainer = Trainer(watch, args.every)
    else:
        subprocess.run([*COMMAND, "run", str(root / "plain" / "config.json")], env=ENVIRONMENT, check=True, capture_output=True)
    policies = 0
    draw, wrong, again, runs, begun = random.Random(args.seed), list[str](), 0, 0, time.monotonic()
    (root / "cluster").mkdir()
    field = Field(root / "cluster", args.workers, draw)
    run = write(root / "cluster", args.rows, args.deterministic, field.port, watch)

    def over() -> bool:
        return sum(field.dealt.values()) >= args.kills or time.monotonic() - begun > args.seconds

    try:
        while not wrong and not (runs and over()):
            field.start_driver(*(["--overwrite"] if runs else []))
            code, quiet = None, time.monotonic()
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = field.driver.wait(draw.uniform(0.3, 1.7) * args.every) if field.driver is not None else 1
                if code is None and not over() and any(run.glob("journal/*")):
                    field.strike()
                    quiet = time.monotonic()
                if time.monotonic() - quiet > 300:
                    wrong.append("the run hangs")
                    code = 1
            runs += 1
            if code != 0:
                wrong.append(f"the driver ended with {code}")
            if args.rollouts and not wrong:
                wrong, found = examine_rollouts(run, args.rows)
                policies += found
            elif not wrong:
                wrong += examine(run, plain, args.rows, args.deterministic)
            again += 0 if wrong else begun_again(run)
    finally:
        if trainer is not None:
            trainer.end()
        codes = field.end()
        if wrong:
            print("\n".join((root / "cluster" / "log").read_text().splitlines()[-60:]), file=sys.stderr)
    figures = {
        "kills": field.dealt,
        "runs": runs,
        "rows": runs * args.rows,
        "begun_again_share": round(again / max(1, runs * args.rows), 4),
        **({"steps": trainer.steps, "policies": policies} if trainer is not None else {}),
        "wrong": wrong,
        "workers_ended": codes,
    }
    print(json.dumps({**figures, "seconds": round(time.monotonic() - begun), "deterministic": args.deterministic, **about()}))
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
