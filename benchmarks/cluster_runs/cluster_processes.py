"""The processes of a run over workers that can be struck: a driver, its workers with the cables between them, and a trainer."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

DEMO = Path(__file__).parents[2] / "configs" / "demo"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")} | {"OPENBLAS_NUM_THREADS": "1"}
END_SECONDS = 40.0  # for what is finished to be saved
COMMAND = [sys.executable, "-m", "mlx_bulk.jobs"]


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
        self.folder, self.draw, self.dealt = folder.absolute(), draw, dict[str, int]()
        self.port = _free_port()
        self.cables, self.agents = list[Cable](), list[subprocess.Popen[bytes]]()
        self._path = folder / "log"
        self.log = self._path.open("a")
        for _ in range(workers):
            self.add_agent()
        self.driver: subprocess.Popen[bytes] | None = None

    def start_driver(self, *options: str) -> None:
        """Starts ``mlx-bulk run``."""
        self.driver = self._start("run", str(self.folder / "config.json"), *options)

    def log_lines(self) -> list[str]:
        """What all processes have said."""
        return self._path.read_text(errors="replace").splitlines()

    def add_agent(self, variables: dict[str, str] | None = None) -> None:
        """Starts one more worker, with a cable of its own. variables: of its environment, beside ours."""
        self.cables.append(Cable(self.port))
        self.agents.append(self._agent(len(self.agents), variables))

    def kill_driver(self) -> None:
        """Kills the driver."""
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()

    def kill_agent(self, number: int) -> None:
        """Kills a worker's agent. ``start_agent`` starts it again."""
        self.agents[number].kill()
        self.agents[number].wait()

    def start_agent(self, number: int) -> None:
        """Starts a worker's agent again."""
        self.agents[number] = self._agent(number)

    def kill_engine(self, number: int) -> bool:
        """Kills a worker's engine; returns False where it has none."""
        children = psutil.Process(self.agents[number].pid).children()
        for engine in children[:1]:
            with suppress(psutil.NoSuchProcess):
                engine.kill()
        return bool(children)

    def strike(self) -> None:
        """Deals one blow."""
        assert self.driver is not None
        number = self.draw.randrange(len(self.agents))
        what = "driver" if self.draw.random() < 0.25 else self.draw.choice(["engine", "agent", "cable"])
        if what == "driver":
            self.kill_driver()
            self.start_driver()
        elif what == "engine":
            if not self.kill_engine(number):
                return
        elif what == "agent":
            self.kill_agent(number)
            self.start_agent(number)
        else:
            self.cables[number].cut()
        self.dealt[what] = self.dealt.get(what, 0) + 1

    def end(self) -> list[int]:
        """Ends all processes, whatever they do; returns the exit codes of the workers."""
        processes = self.agents + ([self.driver] if self.driver is not None else [])
        children = [child for process in processes for child in _children(process.pid)]
        for process in processes:
            process.terminate()
        due, codes = time.monotonic() + END_SECONDS, list[int]()
        for process in processes:
            try:
                codes.append(process.wait(max(0.0, due - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()  # an engine that did not hear of it
        self.log.close()
        return codes[: len(self.agents)]

    def _agent(self, number: int, variables: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        return self._start("worker", f"tcp://127.0.0.1:{self.cables[number].port}", "--name", f"w{number}", variables=variables)

    def _start(self, *arguments: str, variables: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        environment = ENVIRONMENT | (variables or {})
        place: dict[str, Any] = {"cwd": self.folder, "env": environment, "stdout": self.log, "stderr": self.log}
        return subprocess.Popen([*COMMAND, *arguments], start_new_session=True, **place)


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


def _children(process: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).children(recursive=True)
    return []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
