"""An agent in a thread, and a driver in the test's own hands, with real engine processes that echo rows."""

import json
import pickle
import signal
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import pytest
from mlx_bulk.jobs.supervision.crash_suspects import Suspects
from mlx_bulk.jobs.worker.agent import Agent, Signalled, Stay
from mlx_bulk.jobs.worker.engine_process import EngineProcess
from mlx_bulk.runner.cluster.messages import (
    Ack,
    Frames,
    Hello,
    Lease,
    Message,
    Place,
    Ready,
    RunOffer,
)
from mlx_bulk.runner.core.requests import Row

PATIENCE = 60.0  # seconds after which a test that waits has failed
ECHO = str(Path(__file__).with_name("echo_engine.py"))
RUN = "a" * 16
_M = TypeVar("_M")


def lease(name: str, positions: Iterable[int]) -> Lease:
    return Lease(RUN, name, 0, pickle.dumps([Row(at, str(at), {}) for at in positions]))


class AgentsDriver:
    """Both ends of a connection that the test can cut: the agent's, a ``DriverEnd``, and the driver's, which the test uses."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.is_there.set()
        self._to_agent: SimpleQueue[Message | None] = SimpleQueue()
        self.told: SimpleQueue[Message] = SimpleQueue()
        self.error: Exception | None = None
        self.closed = False

    # The agent's end.

    def connect(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.is_there.wait(0.05):
            raise OSError("no driver")
        self._to_agent = SimpleQueue()

    def send(self, message: Message) -> None:
        if self.is_there.is_set():
            self.told.put(message)

    def receive(self, timeout: float | None) -> Message | None:
        message = self._to_agent.get(timeout=timeout)
        if message is None:
            raise EOFError
        return message

    def close(self) -> None:
        self.closed = True

    # The driver's end.

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._to_agent.put(message)

    def go(self) -> None:
        self.is_there.clear()
        self._to_agent.put(None)

    def hear(self, kind: type[_M], **fields: Any) -> _M:
        """Returns the next message of a kind with these fields; those before it are dropped."""
        while True:
            try:
                message = self.told.get(timeout=PATIENCE)
            except Empty:
                pytest.fail(f"no {kind.__name__} came")
            if isinstance(message, kind) and all(getattr(message, name) == value for name, value in fields.items()):
                return message

    def land(self, places: set[Place]) -> None:
        """Acks frames until all these places have come."""
        while places:
            frames = self.hear(Frames)
            places -= set(frames.resolved)
            self.say(Ack(frames.run, frames.number))


class AgentThread:
    """An agent in a thread."""

    def __init__(self, driver: AgentsDriver, stay: Stay, script: dict[str, Any]):
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.engines: list[EngineProcess] = []
        command = [sys.executable, ECHO, json.dumps(script)]

        def start(suspects: Suspects, inbox: "SimpleQueue[Any]") -> EngineProcess:
            self.engines.append(EngineProcess(command, suspects, inbox))
            return self.engines[-1]

        self.agent = Agent(driver, Hello("w-1", "host", {}), start, stay, self.inbox)
        self.code: int | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self.agent.run()
        except Exception as error:
            self.code = error

    def left(self) -> int | BaseException | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.code


@contextmanager
def at_work(stay: Stay | None = None, **script: Any) -> Generator[tuple[AgentsDriver, AgentThread]]:
    """A worker that has joined, and takes leases of a run where there is a script."""
    driver = AgentsDriver()
    worker = AgentThread(driver, stay or Stay(), script)
    try:
        driver.hear(Hello)
        driver.say(RunOffer(RUN, b""))
        driver.hear(Ready, run=RUN)
        yield driver, worker
    finally:
        worker.inbox.put(Signalled(signal.SIGTERM))
        worker.inbox.put(Signalled(signal.SIGTERM))
        worker.left()
