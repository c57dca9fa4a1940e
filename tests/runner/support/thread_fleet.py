"""A fleet whose workers are threads of this process: real engines, real messages, no network. Kills and restarts are asked for."""

import threading
from collections.abc import Callable
from queue import Empty, Queue, SimpleQueue
from time import monotonic
from typing import Any

from mlx_bulk.runner.cluster.interface import Event, Joined, Left, Told
from mlx_bulk.runner.cluster.messages import Frames, FromWorker, Hello, Message, ToWorker
from mlx_bulk.runner.network.wire import from_wire, to_wire

Serve = Callable[["PipeEnd"], None]


def carried(message: Message) -> Any:
    """Returns a message as it comes out at the other end of a wire."""
    return from_wire(_listed(to_wire(message)))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value


class PipeEnd:
    """The worker's end of a pipe: what it sends goes to ``tell``."""

    def __init__(self, tell: Callable[[FromWorker], None]):
        self._inbox: Queue[ToWorker | None] = Queue()
        self._tell = tell
        self.cut = False

    def put(self, message: ToWorker | None) -> None:
        self._inbox.put(message)

    def send(self, message: Any) -> None:
        if not self.cut:
            self._tell(carried(message))

    def receive(self, timeout: float | None) -> Any:
        try:
            message = self._inbox.get(timeout=timeout)
        except Empty:
            return None
        if message is None:
            raise EOFError
        return message

    def wait_until_read(self) -> None:
        """Waits until the worker takes the last message; those before it have been dealt with."""
        while not self._inbox.empty():
            threading.Event().wait(0.01)


class StopEarly:
    """Ends a driver after some frames: ``watch`` loses all that come after them, so that the run cannot be complete."""

    def __init__(self, frames: int = 2):
        self._left = frames

    def stopped(self) -> bool:
        """Returns True once the driver is to end."""
        return self._left <= 0

    def watch(self, worker: str, message: FromWorker) -> bool:
        """For ``ThreadFleet``."""
        if not isinstance(message, Frames):
            return True
        self._left -= 1
        return self._left >= 0

    def go_on(self) -> None:
        """Loses nothing more, and lets the driver run."""
        self._left = 1 << 30


class ThreadFleet:
    """Fulfils ``Fleet``. serve: what a worker's engine process does, given its end of the pipe.

    watch: sees each message of a worker before the driver does; returns False to lose it. spoil: returns what the driver gets.
    hello: of the first worker. label: a worker's --name.
    """

    def __init__(
        self,
        serve: Serve,
        workers: int,
        watch: Callable[[str, FromWorker], bool] = lambda worker, message: True,
        spoil: Callable[[FromWorker], FromWorker] = lambda message: message,
        hello: Hello | None = None,
        label: Callable[[str], str] = lambda worker: worker,
    ):
        self._label = label
        self._serve, self._watch, self._spoil, self._hello = serve, watch, spoil, hello
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._ends: dict[str, PipeEnd] = {}
        self._threads: list[threading.Thread] = []
        self._started = 0
        self.sent: list[tuple[str, ToWorker]] = []
        for _ in range(workers):
            self.start_worker()

    def start_worker(self) -> str:
        """Starts another worker, which joins at once; returns its name."""
        self._started += 1
        name = f"worker-{self._started}"

        def tell(message: FromWorker) -> None:
            if self._watch(name, message):
                self._events.put(Told(name, self._spoil(message)))

        end = self._ends[name] = PipeEnd(tell)
        self._events.put(Joined(name, self._hello or Hello(name, "here", {"name": self._label(name)})))
        self._hello = None
        thread = threading.Thread(target=self._serve, args=(end,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return name

    def kill(self, worker: str) -> None:
        """Ends a worker as SIGKILL does: nothing more comes from it."""
        end = self._ends.pop(worker)
        end.cut = True
        end.put(None)
        self._events.put(Left(worker, "killed"))

    def reconnect(self, worker: str) -> None:
        """Has a worker lose its connection and connect again."""
        self._events.put(Left(worker, "the connection is gone"))
        self._events.put(Joined(worker, Hello(worker, "here", {"name": self._label(worker)})))

    def tell(self, worker: str, message: FromWorker) -> None:
        """Has the driver hear a message in a worker's name."""
        self._events.put(Told(worker, message))

    def workers(self) -> list[str]:
        return list(self._ends)

    def send(self, worker: str, message: ToWorker) -> None:
        if worker in self._ends:
            self.sent.append((worker, message))
            self._ends[worker].put(carried(message))

    def events(self, timeout: float) -> list[Event]:
        due, events = monotonic() + timeout, list[Event]()
        while True:
            try:
                wait = due - monotonic() if not events else 0
                events.append(self._events.get(timeout=wait) if wait > 0 else self._events.get_nowait())
            except Empty:
                return events

    def end(self, dismiss: bool) -> None:
        for end in self._ends.values():
            end.put(None)
        for thread in self._threads:
            thread.join(30)
