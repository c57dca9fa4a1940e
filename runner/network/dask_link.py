"""A worker's end of a cluster on Dask: the connection of its agent to the driver, which can be made again.

A Dask worker that listens nowhere and computes nothing: it only opens the one connection and says now and then that it lives. A new one
is made for each connection. Importing this module needs the extra ``cluster``.
"""

import asyncio
import logging
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, cast

from ...configs.addresses import split_address
from ...configs.errors import ConfigError
from ...configs.visible import visible
from ..cluster.messages import Message
from .dask_comms import (
    ALIVE,
    ALIVE_SECONDS,
    HANGING,
    OP,
    PLAIN_SCHEMES,
    Comm,
    CommClosedError,
    FatalCommClosedError,
    PeriodicCallback,
    StrangerFound,
    StreamClosedError,
    Worker,
    connect,
    dask_settings,
    security,
)
from .tls_keys import require_safe_address
from .wire import from_wire, to_wire

log = logging.getLogger("mlx_bulk")

CONNECT_SECONDS = 3.0  # for one attempt
SILENT_SECONDS = 1.0  # of an attempt, after which the log says that nothing has come
END_SECONDS = 5.0  # for what is still to be sent
_SILENT = "something listens there, but does not answer as a driver of mlx-bulk does"
_PERIODIC = ("find-missing", "shift_counters", "monitor", "ticks", "profile", "profile-cycle")


class _NoPort:
    """In the place of a listener: a worker has no port."""

    prefix = ""
    contact_address = listen_address = "tcp://240.0.0.0:1"

    def stop(self) -> None:
        """Does nothing."""


class _LeaseWorker(Worker):
    """Dask's worker without all that a cluster has no use for. inbox: gets the driver's messages, and None at the end."""

    def __init__(self, address: str, inbox: "SimpleQueue[Message | None]", lost_after: float, **options: Any):
        nobody: dict[str, Any] = {
            "memory_limit": None,
            "contact_address": _NoPort.contact_address,
            "extensions": {},
            "metrics": {},
            "startup_information": {},
        }
        super().__init__(address, nthreads=1, executor="offload", dashboard=False, **nobody, **options)
        self._inbox, self._lost_after = inbox, lost_after
        self._heard = monotonic()
        self.refusal: str | None = None  # what one end found wrong with a message of the other
        for name in _PERIODIC:
            self.periodic_callbacks.pop(name, None)
        self.periodic_callbacks["keep-alive"] = PeriodicCallback(self._look, ALIVE_SECONDS * 1000)

    async def listen(self, *_: object, **__: object) -> None:
        """Listens nowhere."""
        self.listeners.append(cast(Any, _NoPort()))

    def start_http_server(self, *_: object, **__: object) -> None:
        """Starts none."""

    async def get_metrics(self) -> dict[str, Any]:
        """Measures nothing."""
        return {}

    async def heartbeat(self) -> None:
        """Opens no second connection: signs of life go over the first."""

    def _look(self) -> None:
        self.batched_send({"op": ALIVE})
        if monotonic() - self._heard > HANGING * self._lost_after and self.batched_stream.comm is not None:
            self.batched_stream.comm.abort()

    async def handle_scheduler(self, comm: Comm) -> None:
        """Reads the driver's messages until the connection ends."""
        with suppress(CommClosedError, OSError):
            while True:
                messages: Any = await comm.read()
                self._heard = monotonic()
                if not all(map(self._hear, messages if isinstance(messages, (list, tuple)) else [messages])):
                    break
        comm.abort()
        self._inbox.put(None)

    def _hear(self, content: Any) -> bool:
        """Takes a message in. Returns False where the connection is to end."""
        match content:
            case {"op": "mlx-bulk", "message": dict(wire)}:
                try:
                    self._inbox.put(from_wire(wire))
                except ValueError as error:
                    self.refusal = f"the driver sent what this worker does not know ({visible(str(error))[:300]})"
                    return False
            case {"op": "mlx-bulk-refused", "found": str(found)}:
                self.refusal = f"the driver refused this worker, which sent {visible(found)}"
                return False
            case {"op": "close" | "close-stream"}:
                return False
            case _:
                pass
        return True


class DriverLink:
    """The connection to a driver. Fulfils ``Connection``; after EOFError ``connect`` makes a new one.

    address: tcp://host:port, or tls://host:port with tls, the folder of keys. lost_after: seconds without a sign of life after which
    the driver is taken for gone. secret: of the driver that has started this worker, which joins no other. Raises ConfigError for an
    address that is not safe.
    """

    def __init__(self, address: str, tls: str | None = None, lost_after: float = 30.0, secret: str | None = None):
        self.address = require_safe_address(address, tls)
        self._tls, self._lost_after, self._secret = tls, lost_after, secret if tls is None else None
        scheme, _, place = self.address.partition("://")
        self._target = self.address if self._secret is None else f"{PLAIN_SCHEMES[scheme]}://{place}"
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="mlx-bulk-worker-", ignore_cleanup_errors=True))
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._worker: _LeaseWorker | None = None
        self._closed = False
        self._told: str | None = None  # why there was no driver, as the log has it
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="link", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def connect(self) -> None:
        """Connects to the driver. Raises OSError where none answers, ConfigError where the two do not fit: their keys, or versions."""
        if self._worker is not None and self._worker.refusal is not None:
            raise ConfigError(f"{self.address}: {self._worker.refusal}; expected the same version of mlx-bulk on both machines")
        try:
            # Dask tries for seconds where nobody listens, and does not say why it fails.
            socket.create_connection(split_address(self.address.partition("://")[2]), CONNECT_SECONDS).close()
            if self._closed:
                raise OSError("this end is closed")
            asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
        except CancelledError:
            raise OSError("this end is closed") from None
        except OSError as error:
            self._tell(_reason(error))
            raise
        self._told = None

    def _tell(self, why: str) -> None:
        """Says in the log why there is no driver, unless it was the last thing that was said."""
        if why != self._told:
            log.info("no driver answers at %s (%s); trying again until one does", self.address, why)
            self._told = why

    def send(self, message: Message) -> None:
        """Sends a message to the driver. It is dropped where there is no connection."""
        wire = to_wire(message)
        worker = self._worker
        if worker is not None:
            self._call(lambda: worker.batched_send({"op": OP, "message": wire}))

    def receive(self, timeout: float | None) -> Message | None:
        """Returns the driver's next message; None where ``timeout`` seconds bring none. Raises EOFError when the connection is gone."""
        try:
            message = self._inbox.get(timeout=timeout)
        except Empty:
            return None
        if message is None:
            raise EOFError(f"the driver at {self.address} has closed the connection")
        return message

    def close(self) -> None:
        """Sends what is still to be sent, for a few seconds at most, and closes the connection for good. ``receive`` then ends."""
        self._closed = True
        if self._thread.is_alive():
            with suppress(OSError):
                asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
            self._call(self._loop.stop)
            self._thread.join()
        self._inbox.put(None)
        self._resources.close()

    def _call(self, function: Callable[[], object]) -> None:
        """Calls a function in the loop's thread; does nothing once that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    # ------------------------------------------------------------------------------------------- in the loop's thread

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: log.debug("link: %s", context.get("message")))
        with dask_settings(self._lost_after):
            loop.call_soon(started.set_result, loop)
            with suppress(RuntimeError):
                loop.run_forever()
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left))
        loop.close()

    async def _connect(self) -> None:
        await self._leave()
        keys = security(self._tls, self._secret)
        try:
            # Dask's worker tries for ever where keys are refused.
            arguments: dict[str, Any] = keys.get_connection_args("worker")
            attempt = asyncio.create_task(connect(self._target, timeout=CONNECT_SECONDS, **arguments))
            if not (await asyncio.wait([attempt], timeout=SILENT_SECONDS))[0]:
                self._tell(_SILENT)
            await (await asyncio.wait_for(attempt, 2 * CONNECT_SECONDS - SILENT_SECONDS)).close()
        except FatalCommClosedError as error:
            raise ConfigError(
                f"{self.address}: the keys of this worker ({self._tls}) and of the driver are not of one cluster ({_reason(error)}); copy "
                "the folder of keys that the driver uses to this machine"
            ) from None
        except TimeoutError:
            raise OSError(_SILENT) from None
        except StrangerFound:
            raise OSError("what answers there is not the driver that has started this worker") from None
        except OSError as error:
            closed = isinstance(_cause(error), ConnectionError | CommClosedError | StreamClosedError)
            hint = "; a driver with keys is reached at tls://… with --tls FOLDER" if closed and not self._tls and not self._secret else ""
            raise OSError(f"{_reason(error)}{hint}") from None
        except (MemoryError, TypeError, ValueError, AttributeError, AssertionError) as error:  # of bytes that are not Dask's
            raise OSError(f"what answers there is no driver of mlx-bulk: {type(error).__name__}") from None
        inbox: SimpleQueue[Message | None] = SimpleQueue()
        worker = _LeaseWorker(self._target, inbox, self._lost_after, local_directory=self._folder, security=keys)
        try:
            await asyncio.wait_for(worker.start(), 2 * CONNECT_SECONDS)
        except (TimeoutError, RuntimeError, ValueError) as error:
            await _end(worker)
            raise OSError(f"it answers, but lets nobody join: {error}") from None
        self._inbox, self._worker = inbox, worker

    async def _leave(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await _end(worker)


async def _end(worker: _LeaseWorker) -> None:
    """Closes a connection, after what is still to be sent."""
    with suppress(Exception):  # of Dask's own; the connection is given up in any case
        await asyncio.wait_for(worker.close(timeout=END_SECONDS, executor_wait=False, nanny=False), END_SECONDS)
    if worker.batched_stream.comm is not None:
        worker.batched_stream.comm.abort()


def _cause(error: BaseException) -> BaseException:
    """Returns what is at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """Returns what is at the bottom of an error, in the system's words."""
    error = _cause(error)
    if isinstance(error, TimeoutError | asyncio.CancelledError) and not str(error):
        return "it does not answer in time"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
