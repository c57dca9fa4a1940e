"""Measures a run over workers of one BLAS thread each: two workers beside one, and one beside a plain run, by the real command.

All do the same rows with the same model, in turns; a row of the table is the median of the turns. The model has random weights of 135 M
parameters, or is that of ``--model``. ``two plain`` are two plain runs at once, each with half of the rows: what the machine's cores give
two processes that know nothing of each other, and so the most that two workers can reach.

Seconds are those from the first loaded model to the last commit, so that starting counts for none; a second process
may load its model within them. ``steady`` are the rows a second in the middle: from the first tenth of the rows to the last.
CPU milliseconds a row are those of all processes in the same seconds. Where they differ between the lines, the cores themselves were not
equally fast, as on a shared machine. ``cores`` busy, which is CPU seconds by seconds, then says what the runner made of two.
``engines' cores`` counts the processes with models alone, and ``two_beside_one_engine_cores`` compares two workers with one by it.

By default two workers have some two minutes of work, and a turn takes 13 minutes. Needs an idle machine of two cores or more. The last
line is JSON.

A process of one BLAS thread also has mlx's stream thread, which may take another core. With --pin each worker,
that is an agent with its engine, and each plain run is held to one core of its own, and what is left is what the runner costs. A driver may
use all cores. Linux alone can do so.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster_runs.cluster_config import write
from racing.about import about, table

import psutil

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")} | {"OPENBLAS_NUM_THREADS": "1"}
BOUNDS = {"two_beside_one": 1.9, "one_beside_plain": 0.97}
PROCESSES: tuple[str, ...] = ("driver", "agents", "engines")
START_SECONDS = 0.02  # between two looks at processes that start
LOOK_SECONDS = 0.25  # and later: a look takes milliseconds of a core, which two workers need


@dataclass
class Measured:
    """A run. seconds: from the first loaded model to the last commit. steady: rows a second in the middle. cpu: seconds in them."""

    seconds: float
    steady: float | None
    cpu: dict[str, float]


@dataclass
class Watched:
    """A process of the command that is being measured, and those below it. begun: when its first model was loaded.

    cores: each of its workers is held to the next one; empty where they are free.
    """

    process: "subprocess.Popen[str]"
    run: Path
    cores: list[int] = field(default_factory=list[int])
    held: dict[int, int] = field(default_factory=dict[int, int])
    told: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    cpu: dict[int, tuple[str, float]] = field(default_factory=dict[int, tuple[str, float]])
    before: dict[int, tuple[str, float]] = field(default_factory=dict[int, tuple[str, float]])
    begun: float = 0.0

    def listen(self) -> None:
        """Notes what the run tells of its progress: when, the rows that are done, and all rows."""
        assert self.process.stderr is not None
        lines = (json.loads(line) for line in self.process.stderr if line.startswith("{"))
        self.told.extend((time.time(), said["rows"], said["of"]) for said in lines)

    def look(self) -> None:
        """Reads the processor's seconds of each process, which are gone with it. After the last commit they count no more."""
        if self.begun and is_complete(self.run):
            return
        with suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            for each in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):
                    kind, used = kind_of(each, own), each.cpu_times()
                    self.cpu[each.pid] = (kind, used.user + used.system)
                    if self.cores and kind == "agents" and each.pid not in self.held:
                        self.held[each.pid] = self.cores[len(self.held) % len(self.cores)]
                        hold(each, self.held[each.pid])
        if not self.begun and (self.run / "sessions.jsonl").exists():
            self.begun, self.before = time.time(), dict(self.cpu)

    def used(self) -> dict[str, float]:
        """Returns the processor's seconds since the first model was loaded, by the kind of process."""
        found = dict.fromkeys(PROCESSES, 0.0)
        for process, (kind, seconds) in self.cpu.items():
            found[kind] += seconds - self.before.get(process, (kind, 0.0))[1]
        return found

    def steady(self) -> float | None:
        """Returns the rows a second in the middle."""
        middle = [(when, rows) for when, rows, of in self.told if 0.1 * of <= rows <= 0.9 * of]
        return (middle[-1][1] - middle[0][1]) / (middle[-1][0] - middle[0][0]) if len(middle) > 1 else None


def is_complete(run: Path) -> bool:
    """Returns True once the last row is in its part."""
    commits = run / "commits.jsonl"
    return commits.exists() and b'"complete"' in commits.read_bytes()[-1000:]


def kind_of(process: psutil.Process, own: psutil.Process) -> str:
    """Tells which of ``PROCESSES`` it is. A plain run is its own engine."""
    command = process.cmdline()
    if "worker" in command:
        return "agents"
    return "driver" if process == own and "--workers" in command else "engines"


def hold(process: psutil.Process, core: int) -> None:
    """Holds all threads of a process to one core. It has just begun, so what it starts is held, too."""
    for thread in process.threads():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread.id, {core})


def measured(configs: list[Path], workers: int, cores: list[int]) -> Measured:
    """Runs the job of each config, all at once. workers: 0 for plain runs. cores: one for each of these; empty where they are free."""
    watched = [start(config, workers, cores if workers else cores[number : number + 1]) for number, config in enumerate(configs)]
    readers = [threading.Thread(target=each.listen) for each in watched]
    for reader in readers:
        reader.start()
    while any(each.process.poll() is None for each in watched):
        for each in watched:
            each.look()
        time.sleep(LOOK_SECONDS if all(each.begun for each in watched) else START_SECONDS)
    for each in watched:
        if each.process.returncode:
            raise RuntimeError(f"{each.process.args}: exit code {each.process.returncode}")
    for reader in readers:
        reader.join()
    seconds = max((each.run / "commits.jsonl").stat().st_mtime for each in watched) - min(each.begun for each in watched)
    rates = [rate for each in watched if (rate := each.steady()) is not None]
    cpu = {kind: sum(each.used()[kind] for each in watched) for kind in PROCESSES}
    return Measured(seconds, sum(rates) if len(rates) == len(watched) else None, cpu)


def start(config: Path, workers: int, cores: list[int]) -> Watched:
    """Starts a run in a folder of its own. cores: one for each worker, or for the plain run."""
    run = Path(tempfile.mkdtemp(dir=config.parent)) / "run"
    command = [sys.executable, "-m", "mlx_bulk.jobs", "run", str(config), "--output", str(run), "--json-progress"]
    command += ["--workers", str(workers)] if workers else []
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if cores and not workers:
        hold(psutil.Process(process.pid), cores[0])
    return Watched(process, run, cores)


def main() -> None:
    """Runs all in turns and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_800)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens a row")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a checkpoint's folder, in place of random weights")
    parser.add_argument("--pin", action="store_true", help="hold each worker, and each plain run, to one core of its own")
    parser.add_argument("--check", action="store_true", help="exit 1 where a ratio is below its bound; needs an idle machine, and --pin")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0)) if args.pin and sys.platform == "linux" else []
    if args.pin and len(cores) < 2:
        parser.error("--pin needs Linux, and two cores")
    runs: dict[str, list[Measured]] = {"plain": [], "two plain": [], "1 worker": [], "2 workers": []}
    with tempfile.TemporaryDirectory(dir=".") as name:
        root = Path(name).absolute()
        model = root / "model" if args.model is None else args.model.absolute()
        if args.model is None:
            model.mkdir()
            builder = multiprocessing.get_context("spawn").Process(target=save_model, args=(model,))
            builder.start()
            builder.join()
        sections = {
            "model": {"path": str(model)},
            "sampling": {"max_tokens": args.tokens, "temperature": 0},
            "batch": {"rows": 32},
        }
        whole, *halves = (
            write(root / part, rows, **sections) for part, rows in (("all", args.rows), ("a", args.rows // 2), ("b", args.rows // 2))
        )
        for _ in range(args.turns):
            runs["plain"].append(measured([whole], 0, cores))
            runs["two plain"].append(measured(halves, 0, cores))
            runs["1 worker"].append(measured([whole], 1, cores))
            runs["2 workers"].append(measured([whole], 2, cores))
    rates = {label: statistics.median(args.rows / each.seconds for each in turns) for label, turns in runs.items()}
    told = {label: [each.steady for each in turns if each.steady is not None] for label, turns in runs.items()}
    steady = {label: statistics.median(found) for label, found in told.items() if found}
    cpu = {label: {kind: milliseconds(turns, kind, args.rows) for kind in PROCESSES} for label, turns in runs.items()}
    busy = {label: statistics.median(sum(each.cpu.values()) / each.seconds for each in turns) for label, turns in runs.items()}
    engines = {label: statistics.median(each.cpu["engines"] / each.seconds for each in turns) for label, turns in runs.items()}
    show(args.rows, rates, steady, busy, engines, cpu)
    compared = {"": rates, "_steady": steady, "_engine_cores": engines}
    figures = {f"{name}{part}": ratio for part, found in compared.items() for name, ratio in ratios(found).items()}
    seconds = {label: [round(each.seconds, 2) for each in turns] for label, turns in runs.items()}
    missed = [name for name, least in BOUNDS.items() if figures.get(name, 0.0) < least]
    more = {"missed": missed, "seconds": seconds, "cores": busy, "cpu_ms_a_row": cpu, "rows": args.rows, "pinned": args.pin}
    print(json.dumps({**figures, **more, **about()}))
    sys.exit(1 if args.check and missed else 0)


def show(
    rows: int,
    rates: dict[str, float],
    steady: dict[str, float],
    busy: dict[str, float],
    engines: dict[str, float],
    cpu: dict[str, dict[str, float]],
) -> None:
    """Prints a line for each kind of run."""
    table(
        {
            label: (
                f"{rows / rates[label]:.1f}",
                f"{rates[label]:.1f}",
                f"{steady[label]:.1f}" if label in steady else "",
                f"{busy[label]:.2f}",
                f"{engines[label]:.2f}",
                *used.values(),
            )
            for label, used in cpu.items()
        },
        [
            "seconds",
            "rows/s",
            "steady rows/s",
            "cores",
            "engines' cores",
            *(f"{kind}' CPU ms/row" if kind != "driver" else "driver's CPU ms/row" for kind in PROCESSES),
        ],
    )


def save_model(folder: Path) -> None:
    """Builds the model, in a process of its own: this one goes on without mlx."""
    from networks import shapes

    shapes.save(folder, shapes.SHAPES["135m"])


def milliseconds(turns: list[Measured], kind: str, rows: int) -> float:
    """Returns the processor's milliseconds that processes of a kind have used for a row."""
    return round(1000 * statistics.median(each.cpu[kind] for each in turns) / rows, 3)


def ratios(rates: dict[str, float]) -> dict[str, float]:
    """Returns how much faster each is than what it is set beside; nothing where a rate lacks, or is too small to be seen."""
    pairs = {
        "two_beside_one": ("2 workers", "1 worker"),
        "one_beside_plain": ("1 worker", "plain"),
        "two_plain_beside_one": ("two plain", "plain"),
        "two_workers_beside_two_plain": ("2 workers", "two plain"),
    }
    return {name: round(rates[one] / rates[other], 3) for name, (one, other) in pairs.items() if one in rates and rates.get(other)}


if __name__ == "__main__":
    main()
