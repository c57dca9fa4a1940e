"""The driver's end of a cluster on Dask: a scheduler in a thread of its own, which workers connect to.

It turns what comes on connections into events, and checks that each message is one that a worker may send. ``dask_scheduler.py`` holds
the connections. Importing this module needs the extra ``cluster``.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

from ...configs.addresses import split_address
from ...configs.errors import ConfigError
from ...configs.visible import visible
from ..cluster.interface import Event, Joined, Left, Told
from ..cluster.messages import Dismiss, Hello, ToWorker
from .dask_comms import (
    ALIVE,
    ALIVE_SECONDS,
    HANGING,
    OP,
    PLAIN_SCHEMES,
    CommClosedError,
    dask_settings,
    security,
)
from .dask_scheduler import LeaseScheduler, LineEnded, MessageRefused, WorkerLine
from .tls_keys import require_safe_address
from .wire import from_wire, to_wire

log = logging.getLogger("mlx_bulk")

FULL_BYTES = 8 << 20  # of messages that are read, and those that the driver has not taken: then no more are read
END_SECONDS = 5.0  # for what is still to be sent at the end
_READING_SECONDS = 1.0
_LONGEST_NAME = 200  # characters


class DaskFleet:
    """The workers that have connected to this process. Fulfils ``Fleet``.

    listen: ``host:port``, with port 0 for any free one. tls: the folder of keys, which an address that others reach needs. lost_after:
    seconds without a sign of life after which a worker is taken for gone. secret: without it, which workers of this machine are given as
    they are started, nobody joins; not with tls. Raises ConfigError where it cannot listen there.
    """

    def __init__(self, listen: str, tls: str | None = None, lost_after: float = 30.0, secret: str | None = None):
        url = require_safe_address(listen, tls)
        self._lost_after = lost_after
        self._events: deque[tuple[Event, WorkerLine]] = deque()
        self._news = threading.Condition()
        self._queued = self._reading = 0  # bytes in _events, and of messages that are being read
        self._waited_for = False  # room is
        self._failure: BaseException | None = None  # of the loop's thread
        self._lines: dict[str, WorkerLine] = {}  # by worker, as the loop's thread sees it
        self._seen: dict[str, WorkerLine] = {}  # by worker, as the driver has been told
        started: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, args=(url, lambda: security(tls, secret), started), name="fleet", daemon=True)
        self._thread.start()
        try:
            self.address = started.result()
        except OSError as error:
            raise ConfigError(
                f"cluster.listen: found {listen}, where this machine cannot listen ({_reason(error)}); name another"
            ) from None

    def workers(self) -> list[str]:
        """Returns the workers whose joining ``events`` has told, and whose leaving it has not."""
        return list(self._seen)

    def send(self, worker: str, message: ToWorker) -> None:
        """Sends a message without waiting, on the connection that ``events`` told of last. It is lost where that one is gone."""
        if (line := self._seen.get(worker)) is not None:
            wire = to_wire(message)
            self._call(lambda: self._send(line, wire))

    def events(self, timeout: float) -> list[Event]:
        """Returns what has happened since the last call; waits ``timeout`` seconds for the first event."""
        with self._news:
            if not self._events and self._failure is None:
                self._news.wait(timeout)
            if self._failure is not None:
                raise RuntimeError("the thread that holds the connections of workers has ended") from self._failure
            taken, waited_for = list(self._events), self._waited_for
            self._events.clear()
            self._queued, self._waited_for = 0, False
        for event, line in taken:
            match event:
                case Joined(worker):
                    self._seen[worker] = line
                case Left(worker):
                    self._seen.pop(worker, None)
                case Told():
                    pass
        if waited_for:
            self._call(self._more_room)
        return [event for event, _ in taken]

    def end(self, dismiss: bool) -> None:
        """Sends what is still to be sent, for a few seconds at most, and closes all connections and the port."""
        if dismiss:
            wire = to_wire(Dismiss())
            self._call(lambda: [self._send(line, wire) for line in self._lines.values()])
        self._call(self._ended.set)
        self._thread.join()
        self._seen.clear()

    def _call(self, function: Callable[[], object]) -> None:
        """Calls a function in the loop's thread; does nothing once that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    # ------------------------------------------------------------------------------------------- in the loop's thread

    def _run(self, url: str, keys: Callable[[], Any], started: Future[str]) -> None:
        try:
            with dask_settings(self._lost_after):
                asyncio.run(self._serve(url, keys, started))
        except BaseException as error:
            if started.done():
                self._failure = error
                with self._news:
                    self._news.notify()
                return
            started.set_exception(error)

    async def _serve(self, url: str, keys: Callable[[], Any], started: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, context: log.debug("fleet: %s", context))
        self._room, self._ended = asyncio.Event(), asyncio.Event()
        scheme, _, place = url.partition("://")
        host, port = split_address(place)
        host = f"[{host}]" if ":" in host else host
        self._scheduler = scheduler = LeaseScheduler(
            self._take, self._leave, self._room_for, host=host, port=port, protocol=PLAIN_SCHEMES[scheme], security=keys()
        )
        try:
            await scheduler
        except RuntimeError as error:
            raise error.__cause__ if isinstance(error.__cause__, OSError) else error from None
        started.set_result(scheduler.address)
        while not self._ended.is_set():
            try:
                await asyncio.wait_for(self._ended.wait(), ALIVE_SECONDS)
            except TimeoutError:
                self._look(scheduler)
        lines = list(scheduler.lines.values())
        try:
            await asyncio.wait_for(scheduler.close(reason="the run has ended"), END_SECONDS)
        except TimeoutError:
            for line in lines:
                line.comm.abort()

    def _look(self, scheduler: LeaseScheduler) -> None:
        """Tells workers that the driver is there, and closes the connections of those that hang. TCP notices lost machines before."""
        for line in list(scheduler.lines.values()):
            self._stream(line, {"op": ALIVE})
            if (silent := monotonic() - line.heard) > HANGING * self._lost_after:
                line.reason = f"no sign of life for {silent:.0f} seconds"
                line.comm.abort()

    def _send(self, line: WorkerLine, wire: dict[str, Any]) -> None:
        self._stream(line, {"op": OP, "message": wire})

    def _stream(self, line: WorkerLine, content: dict[str, Any]) -> None:
        if (stream := self._scheduler.stream_comms.get(line.address)) is not None:
            with suppress(CommClosedError):
                stream.send(content)

    @asynccontextmanager
    async def _room_for(self, size: int) -> AsyncGenerator[None]:
        """Surrounds the reading of a message of ``size`` bytes. Waits before while too much is being read, or was not taken.

        It does not wait long for what is being read: that may come from a worker whose cable is pulled.
        """
        reading = True
        while not self._fits(size, reading):
            try:
                await asyncio.wait_for(self._room.wait(), _READING_SECONDS)
            except TimeoutError:
                reading = False
        self._reading += size
        try:
            yield
        finally:
            self._reading -= size
            self._more_room()

    def _fits(self, size: int, reading: bool) -> bool:
        with self._news:
            held = self._queued + (self._reading if reading else 0)
            fits = not held or held + size <= FULL_BYTES
            self._waited_for |= not fits
        return fits

    def _more_room(self) -> None:
        """Wakes those that wait for room; they look anew."""
        self._room.set()
        self._room.clear()

    def _take(self, line: WorkerLine, messages: list[Any], size: int) -> None:
        """Takes what came on a connection at once."""
        for content in messages:
            match content:
                case {"op": "mlx-bulk", "message": dict(wire)}:
                    self._hear(line, wire, size)
                    size = 0
                case {"op": "close-stream"}:
                    raise LineEnded
                case {"op": str()}:
                    pass  # Dask's own: signs of life, logs, states
                case _:
                    raise MessageRefused("a message without op")

    def _hear(self, line: WorkerLine, wire: dict[str, Any], size: int) -> None:
        try:
            message = from_wire(wire)
        except Exception as error:  # of any kind, since the bytes are a stranger's
            raise MessageRefused(f"what this version of mlx-bulk does not know ({visible(str(error))[:300]})") from None
        if isinstance(message, Hello) and line.worker is None:
            self._join(line, message)
        elif line.worker is None:
            raise MessageRefused(f"{type(message).__name__} before Hello")
        elif isinstance(message, Hello | ToWorker):
            raise MessageRefused(f"{type(message).__name__}, which it may not send")
        elif self._lines.get(line.worker) is line:
            self._tell(Told(line.worker, message), line, size)

    def _join(self, line: WorkerLine, hello: Hello) -> None:
        if not hello.worker.isprintable() or not 0 < len(hello.worker) <= _LONGEST_NAME:
            raise MessageRefused("a name that is empty, too long or not printable")
        line.worker = hello.worker
        if (earlier := self._lines.get(hello.worker)) is not None:
            earlier.reason = "it has connected again"
            self._leave(earlier)
            earlier.comm.abort()
        self._lines[hello.worker] = line
        self._tell(Joined(hello.worker, hello), line, 0)

    def _leave(self, line: WorkerLine) -> None:
        if line.worker is not None and self._lines.get(line.worker) is line:
            del self._lines[line.worker]
            self._tell(Left(line.worker, line.reason, line.in_order), line, 0)

    def _tell(self, event: Event, line: WorkerLine, size: int) -> None:
        with self._news:
            self._events.append((event, line))
            self._queued += size
            self._news.notify()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
