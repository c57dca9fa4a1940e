"""A run over a group of two processes on this machine: real commands, a real driver, mlx's ring on loopback."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from ...checkpoints import LLAMA, write_checkpoint

PATIENCE = 120.0  # seconds after which a command that has not ended has failed
COMMAND = [sys.executable, "-P", "-m", "mlx_bulk.jobs"]
# Groups run without the kernels for CPUs. Two processes that wait for each other are slow where each has threads for all cores.
ENVIRONMENT = {**os.environ, "MLX_BULK_CPU": "generic", "OPENBLAS_NUM_THREADS": "1"}
HOSTS = [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}] * 2
_JOINS = re.compile(r"mlx-bulk worker (tcp://\S+)")


@dataclass(slots=True)
class GroupRun:
    """A run that has begun: its driver, and the agent of its group."""

    driver: "subprocess.Popen[str]"
    worker: "subprocess.Popen[str]"
    output: Path
    log: Path  # of the worker

    def ranks(self) -> list[psutil.Process]:
        """The processes of the group by rank, as far as they run."""
        named: list[tuple[bool, psutil.Process]] = []
        for child in psutil.Process(self.worker.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended, and has no command line
                command = child.cmdline()
                if "mlx_bulk.jobs" in command:
                    named.append(("worker-rank" in command, child))
        return [child for _, child in sorted(named, key=lambda pair: pair[0])]

    def end(self) -> tuple[int, str]:
        """Waits for the driver; returns its exit code and what it has said."""
        _, said = self.driver.communicate(timeout=PATIENCE)
        return self.driver.returncode, said


def write_model(folder: Path, kind: str = "qwen2", **changes: Any) -> Path:
    """A tiny random model of an architecture that is split by pipeline (qwen2) or tensor (llama)."""
    return write_checkpoint(folder, LLAMA | {"model_type": kind, "num_hidden_layers": 4, "max_position_embeddings": 512} | changes)


def write_job(root: Path, name: str, **sections: Any) -> Path:
    """A job's config; the output is the folder ``name``."""
    rows = [{"q": "word " * (1 + row % 7)} for row in range(sections.pop("rows", 40))]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "job": "generate",
        "model": {"path": str(root / "model")},
        "data": {"path": str(root / "rows.jsonl")},
        "prompt": {"user": "{{ q }}"},
        "sampling": {"max_tokens": 16, "temperature": 1.0},
        "output": {"path": str(root / name)},
        **sections,
    }
    config["batch"] = {"memory": 0.1, "rows": 8, "rows_per_shard": 16, **sections.get("batch", {})}
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
    return path


def plain_run(config: Path) -> None:
    """Runs a job in one process."""
    done = subprocess.run([*COMMAND, "run", str(config)], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def group_run(root: Path, config: Path, options: Sequence[str] = ()) -> Generator[GroupRun]:
    """Begins a job over a group of two. Its config has ``cluster.listen: 127.0.0.1:0``."""
    (root / "hosts.json").write_text(json.dumps(HOSTS))
    driver = subprocess.Popen([*COMMAND, "run", str(config)], env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    worker = None
    try:
        assert driver.stderr is not None
        line = next(line for line in driver.stderr if _JOINS.search(line))
        (address,) = _JOINS.findall(line)
        with (root / "worker.log").open("w") as log:
            command = [*COMMAND, "worker", address, "--once", "--group", str(root / "hosts.json"), "--name", "pair", *options]
            worker = subprocess.Popen(command, env=ENVIRONMENT, stderr=log, stdout=log, text=True)
        output = Path(yaml.safe_load(config.read_text())["output"]["path"])
        yield GroupRun(driver, worker, output, root / "worker.log")
        worker.wait(PATIENCE)
    finally:
        if worker is not None and worker.poll() is None:
            for child in psutil.Process(worker.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            worker.kill()
        if driver.poll() is None:
            driver.kill()
        driver.communicate()


def parts(folder: Path) -> list[bytes]:
    """The bytes of a run's parts."""
    return [path.read_bytes() for path in sorted((folder / "results").iterdir())]
