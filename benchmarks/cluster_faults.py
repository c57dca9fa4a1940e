"""Kills a run over workers at random, again and again, and proves what is left: no row lost, none twice, the bytes of a plain run.

Each blow kills the driver (1 in 4), an engine, or an agent, or it cuts the cable between a worker and the driver. A run that is complete is
verified, compared with a plain run, and begun anew until so many processes are killed, in about --seconds: 200 kills take 14 minutes on an
idle machine of 2 cores. Without --deterministic a near-tie may go the other way: at most 1 completion of 500 may be another, and
``different`` counts them. The last line is JSON; exit 1 where anything is wrong.

``begun_again_share`` counts rows that were begun more than once, and ``begun_again`` says why. It misses rows of a worker after whose death
the driver dies, too, before they are given out again; with --deterministic only where nothing of their shard was saved.
``in_flight_share`` is what cannot be avoided where each engine or agent dies with a full batch: its rows. It falls with the rows that are
done between two blows. Read the larger of the two.
With --rollouts a trainer writes a new policy every few seconds: each group must be whole, and each shard of one policy.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster_runs.cluster_processes import COMMAND, DEMO, ENVIRONMENT, Field, Trainer
from racing.about import about, table

import pyarrow as pa

SAMPLES, PER_SHARD = 4, 16  # of rollouts
PER_SHARD_ROWS, BATCH_ROWS = 64, 16  # of other jobs; samples that an engine has at once
TRAIN_SECONDS, LEAST_PAUSE = 2.5, 0.5  # between two policies; between two blows
FSYNC_SECONDS = 1  # of the run
KILLS = 0.75  # of blows; the others cut cables
LATE = 1.2  # times --seconds: no blows after that
HANGS_SECONDS = 300.0  # without a blow and without anything that is saved


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
        "batch": {"rows": BATCH_ROWS, "rows_per_shard": PER_SHARD_ROWS, "deterministic": deterministic},
        "output": {"path": str(folder / "run"), "fsync_seconds": FSYNC_SECONDS},
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


def begun_again(run: Path) -> Counter[str]:
    """How many rows were begun more than once, by the cause, as far as the driver knows."""
    counts = Counter[str]()
    for line in (run / "workers.jsonl").read_text().splitlines():
        if again := (values := json.loads(line)).get("again"):
            counts[values["cause"]] += again
    return counts


def in_flight(args: argparse.Namespace) -> int:
    """How many rows an engine has at once, which nobody can save when it is killed."""
    if args.deterministic:
        return PER_SHARD_ROWS  # a shard is run again as a whole
    return BATCH_ROWS // SAMPLES if args.rollouts else BATCH_ROWS


def saved(run: Path) -> int:
    """Bytes of what the run has saved."""
    size = 0
    for path in [*run.glob("journal/*"), *run.glob("results/*")]:
        with suppress(FileNotFoundError):  # a journal goes when its shard is committed
            size += path.stat().st_size
    return size


def examine(run: Path, plain: Path, rows: int, deterministic: bool) -> tuple[list[str], int]:
    """Returns what is wrong with a complete run, and how many completions are not those of a plain run."""
    verified = subprocess.run([*COMMAND, "verify", str(run)], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    wrong = [] if verified.returncode == 0 else [f"verify: {verified.returncode}: {verified.stdout}{verified.stderr}"]
    if deterministic:
        return wrong + ([] if parts(run) == parts(plain) else ["the parts are not those of a plain run"]), 0
    ours, theirs = completions(run), completions(plain)
    if [row for row, _ in ours] != list(range(rows)):
        wrong.append("rows are lost, doubled or out of order")
    different = sum(a != b for a, b in zip(ours, theirs, strict=False))
    return wrong + ([f"{different} completions are not those of a plain run"] if different > rows / 500 else []), different


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
    parser.add_argument("--kills", type=int, default=200, help="of processes; cut cables come on top")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=24_000, help="of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, help="mean seconds between two blows; else as many as --seconds leave")
    parser.add_argument("--seconds", type=float, default=780.0, help="that the blows are to take; none after a fifth more")
    parser.add_argument("--most-again", type=float, metavar="SHARE", help="of rows that may be begun again; 0.05 on an idle machine")
    parser.add_argument("--deterministic", action="store_true", help="parts must be the same bytes as a plain run's")
    parser.add_argument("--rollouts", action="store_true", help="rollouts, under policies that a trainer writes meanwhile")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes of the run end, too
    with tempfile.TemporaryDirectory() as name:
        sys.exit(strike_all(args, Path(name)))


class Blows:
    """Deals blows to ``field`` until so many processes are killed, within ``--seconds``, and waits between them."""

    def __init__(self, args: argparse.Namespace, field: Field, draw: random.Random):
        self.args, self.field, self._draw, self.begun = args, field, draw, time.monotonic()

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(count for what, count in self.field.dealt.items() if what != "cable")

    @property
    def over(self) -> bool:
        """Whether no more come."""
        return self.kills >= self.args.kills or self.seconds > LATE * self.args.seconds

    @property
    def seconds(self) -> float:
        """Since the first driver was started."""
        return time.monotonic() - self.begun

    def pause(self) -> float:
        """Seconds until the next one."""
        blows = max(1, self.args.kills - self.kills) / KILLS
        mean = self.args.every or max(LEAST_PAUSE, (self.args.seconds - self.seconds) / blows)
        return self._draw.uniform(0.3, 1.7) * mean

    def during(self, run: Path) -> list[str]:
        """Deals them until the driver has ended by itself; returns what was wrong with that."""
        code, quiet, bytes_saved = None, time.monotonic(), 0
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = self.field.driver.wait(self.pause()) if self.field.driver is not None else 1
            if code is None and not self.over and any(run.glob("journal/*")):
                self.field.strike()
                quiet = time.monotonic()
            if (now_saved := saved(run)) != bytes_saved:
                bytes_saved, quiet = now_saved, time.monotonic()
            if code is None and time.monotonic() - quiet > HANGS_SECONDS:
                return ["the run hangs"]
        return [f"the driver ended with {code}"] if code != 0 else []


def strike_all(args: argparse.Namespace, root: Path) -> int:
    """Does all runs; returns the exit code."""
    plain, trainer, watch = write(root / "plain", args.rows, args.deterministic, None), None, None
    if args.rollouts:
        watch = root / "adapters"
        trainer = Trainer(watch, args.every or TRAIN_SECONDS)
    else:
        before = time.monotonic()
        subprocess.run([*COMMAND, "run", str(root / "plain" / "config.json")], env=ENVIRONMENT, check=True, capture_output=True)
        took = time.monotonic() - before
        print(f"a plain run took {took:.0f} s; {args.kills} kills come within {args.seconds:.0f} s, then the run at hand ends", flush=True)
    draw, wrong, again, runs, policies, different = random.Random(args.seed), list[str](), Counter[str](), 0, 0, 0
    (root / "cluster").mkdir()
    field = Field(root / "cluster", args.workers, draw)
    run = write(root / "cluster", args.rows, args.deterministic, field.port, watch)
    blows = Blows(args, field, draw)
    try:
        while not wrong and not (runs and blows.over):
            field.start_driver(*(["--overwrite"] if runs else []))
            wrong += blows.during(run)
            runs += 1
            if args.rollouts and not wrong:
                wrong, found = examine_rollouts(run, args.rows)
                policies += found
            elif not wrong:
                wrong, found = examine(run, plain, args.rows, args.deterministic)
                different += found
            again += Counter() if wrong else begun_again(run)
            print(f"run {runs}: {blows.kills} of {args.kills} kills in {blows.seconds:.0f} s", flush=True)
    finally:
        if trainer is not None:
            trainer.end()
        codes = field.end()
        if wrong:
            print("\n".join(field.log_lines()[-60:]), file=sys.stderr)
    more = {"steps": trainer.steps, "policies": policies} if trainer is not None else {"different": different}
    if args.most_again is not None and (share := again.total() / (runs * args.rows)) > args.most_again:
        wrong.append(f"{share:.2%} of rows were begun again")
    if blows.kills < args.kills:
        wrong.append(f"{blows.kills} processes were killed, not {args.kills}")
    tell(blows, runs, again, {**more, "wrong": wrong, "workers_ended": codes})
    return 1 if wrong else 0


def tell(blows: Blows, runs: int, again: Counter[str], more: dict[str, Any]) -> None:
    """Prints how many rows were begun again, beside those in flight at deaths, and the line of JSON. more: further figures."""
    args, dealt = blows.args, blows.field.dealt
    rows = max(1, runs * args.rows)
    fatal = dealt.get("engine", 0) + dealt.get("agent", 0)
    lost = fatal * in_flight(args)
    table(
        {
            "begun again, as counted": (again.total(), f"{100 * again.total() / rows:.2f} %"),
            **{f"  {cause}": (count, f"{100 * count / rows:.2f} %") for cause, count in again.most_common()},
            f"in flight at {fatal} deaths": (lost, f"{100 * lost / rows:.2f} %"),
        },
        ["rows", f"of {rows}"],
    )
    figures = {
        "dealt": dealt,
        "kills": blows.kills,
        "runs": runs,
        "rows": runs * args.rows,
        "begun_again_share": round(again.total() / rows, 4),
        "in_flight_share": round(lost / rows, 4),
        "begun_again": dict(again),
        **more,
    }
    print(json.dumps({**figures, "seconds": round(blows.seconds), "deterministic": args.deterministic, **about()}))


if __name__ == "__main__":
    main()
