"""Kills a run over workers at random, again and again, and proves what is left: no row lost, none twice, the bytes of a plain run.

Each blow hits the driver (1 in 4), an engine, an agent, or the cable between a worker and the driver. A run that is complete is
verified, compared with a plain run, and begun anew until all blows are dealt. The last line is JSON; exit 1 where anything is wrong.
With --rollouts a trainer writes a new policy every few seconds: each group must be whole, and each shard of one policy.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from about import about

DEMO = Path(__file__).parents[1] / "configs" / "demo"
SAMPLES, PER_SHARD = 4, 16  # of rollouts
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")} | {"OPENBLAS_NUM_THREADS": "1"}


class Cable:
    """Carries what comes at ``port`` of this machine to the port ``to``, until it is cut; then it can be joined again."""

    def __init__(self, to: int):
        self._to, self._ends = to, list[socket.socket]()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends all connections."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


class Field:
    """The processes of a run: a driver and its workers."""

    def __init__(self, folder: Path, workers: int, draw: random.Random):
        self.folder, self.draw, self.dealt = folder, draw, dict[str, int]()
        self.port = _free_port()
        self.cables = [Cable(self.port) for _ in range(workers)]
        self.log = (folder / "log").open("a")
        self.agents = [self._agent(number) for number in range(workers)]
        self.driver: subprocess.Popen[bytes] | None = None

    def start_driver(self, *options: str) -> None:
        """Starts ``mlx-bulk run``."""
        self.driver = self._start("run", str(self.folder / "config.json"), *options)

    def strike(self) -> None:
        """Deals one blow."""
        assert self.driver is not None
        number = self.draw.randrange(len(self.agents))
        what = "driver" if self.draw.random() < 0.25 else self.draw.choice(["engine", "agent", "cable"])
        if what == "driver":
            self.driver.kill()
            self.driver.wait()
            self.start_driver()
        elif what == "engine":
            children = psutil.Process(self.agents[number].pid).children()
            if not children:
                return
            with suppress(psutil.NoSuchProcess):
                children[0].kill()
        elif what == "agent":
            self.agents[number].kill()
            self.agents[number].wait()
            self.agents[number] = self._agent(number)
        else:
            self.cables[number].cut()
        self.dealt[what] = self.dealt.get(what, 0) + 1

    def end(self) -> list[int]:
        """Ends all processes; returns the exit codes of the workers."""
        for process in self.agents + ([self.driver] if self.driver is not None else []):
            process.terminate()
        codes: list[int] = []
        for process in self.agents:
            try:
                codes.append(process.wait(30))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(-9)
        return codes

    def _agent(self, number: int) -> subprocess.Popen[bytes]:
        return self._start("worker", f"tcp://127.0.0.1:{self.cables[number].port}", "--name", f"w{number}")

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, stdout=self.log, stderr=self.log, start_new_session=True)


class Trainer:
    """Writes a new adapter for the demo model into ``folder`` again and again, as a trainer does."""

    def __init__(self, folder: Path, every: float):
        from mlx_bulk.kernels.backend import load_mlx

        load_mlx()
        import mlx_lm
        from mlx_lm.tuner.utils import linear_to_lora_layers

        self._folder, self._every = folder, every
        self._model: Any = mlx_lm.load(str(DEMO))[0]
        self._model.freeze()
        parameters: dict[str, Any] = {"rank": 4, "scale": 2.0, "dropout": 0.0}
        self._settings: dict[str, Any] = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters}
        linear_to_lora_layers(self._model, 2, parameters)
        self.steps = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the training."""
        self._ended.set()
        self._thread.join()

    def _train(self) -> None:
        import mlx.core as mx
        from mlx.utils import tree_flatten

        while not self._ended.wait(self._every):
            self.steps += 1
            step = self._folder / f"step_{self.steps:06d}"
            step.mkdir(parents=True)
            tensors = dict(tree_flatten(self._model.trainable_parameters()))
            moved = {name: mx.random.normal(each.shape, key=mx.random.key(self.steps)) * 0.05 for name, each in tensors.items()}
            mx.save_safetensors(str(step / "adapters.safetensors"), moved)
            (step / "adapter_config.json").write_text(json.dumps(self._settings))
            (step / "DONE").touch()


COMMAND = [sys.executable, "-m", "mlx_bulk.jobs"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


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
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds between two blows")
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
