"""Dask's scheduler as a cluster uses it: it reads the connections of workers, and that is all.

No task, client, plugin or page; what would run code, unpickle or connect elsewhere is removed. Knows no messages: ``dask_fleet.py`` does.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from time import monotonic
from typing import Any

from .dask_comms import REFUSED, CommClosedError, NotPlain, Scheduler, get_address_host

log = logging.getLogger("mlx_bulk")

HELLO_SECONDS = 30.0  # for a worker's first message
_MOST_TOLD = 100  # lines in the log on refused connections
_PERIODIC = ("idle-timeout", "no-workers-timeout", "shift_counters", "monitor", "ticks")


class WorkerLine:
    """A connection of a worker. worker: its name, once it has said Hello. heard: when it last showed a sign of life.

    reason, in_order: see ``Left``.
    """

    def __init__(self, address: str, comm: Any):
        self.address, self.comm = address, comm
        self.worker: str | None = None
        self.heard = monotonic()
        self.reason = "the connection is gone"
        self.in_order = False


class MessageRefused(Exception):
    """A worker has sent what no worker of ours sends."""


class LineEnded(Exception):
    """A worker has ended its connection."""


class LeaseScheduler(Scheduler):
    """Dask's scheduler without all that a cluster has no use for. It believes nothing that a worker says of itself.

    take: gets the messages of a connection, and their bytes. leave: is told of its end. room: see ``PlainComm``.
    """

    def __init__(
        self,
        take: Callable[[WorkerLine, list[Any], int], None],
        leave: Callable[[WorkerLine], None],
        room: Callable[[int], AbstractAsyncContextManager[None]],
        **options: Any,
    ):
        super().__init__(dashboard=False, extensions={}, **options)
        self._take, self._leave, self._room = take, leave, room
        self._joined = 0
        self._told: set[str] = set()
        self.lines: dict[str, WorkerLine] = {}
        self.handlers = {"register-worker": self.add_worker}
        self.stream_handlers = {}
        self.rpc.connect = _refuse_to_connect
        for name in _PERIODIC:
            self.periodic_callbacks.pop(name, None)

    def start_http_server(self, *_: object, **__: object) -> None:
        """Starts none."""

    async def add_worker(self, comm: Any, **_: object) -> None:
        """Registers a connection under an address of our own; Dask names workers by addresses, and nobody listens at this one."""
        self._joined += 1
        address = f"tcp://240.{self._joined >> 16 & 255}.{self._joined >> 8 & 255}.{self._joined & 255}:1"
        about: dict[str, Any] = {
            "status": "running",
            "server_id": address,
            "nthreads": 1,
            "name": address,
            "now": 0.0,
            "resources": {},
            "services": {},
        }
        nothing: dict[str, Any] = {"memory_limit": None, "metrics": {}, "local_directory": "", "versions": {}, "nanny": None, "extra": {}}
        await super().add_worker(comm, address=address, resolve_address=False, stimulus_id="join", **about, **nothing)

    def heartbeat_worker(self, **_: object) -> dict[str, Any]:
        """Notes nothing: ``WorkerLine.heard`` does."""
        return {}

    async def handle_stream(self, comm: Any, extra: dict[str, Any] | None = None) -> None:
        """Reads a worker's connection until it ends."""
        line = WorkerLine((extra or {})["worker"], comm)
        self.lines[line.address] = line
        comm.room = self._room
        try:
            while True:
                messages: Any = await asyncio.wait_for(comm.read(), HELLO_SECONDS if line.worker is None else None)
                line.heard = monotonic()
                self._take(line, messages if isinstance(messages, list) else [messages], comm.nbytes)
        except (NotPlain, MessageRefused) as error:
            line.reason = f"it sent {error}"
            await self._refuse(line, str(error))
        except LineEnded:
            line.reason, line.in_order = "it has closed its connection", True
        except (CommClosedError, TimeoutError):
            pass
        finally:
            comm.abort()
            self.lines.pop(line.address, None)
            self._leave(line)

    async def _refuse(self, line: WorkerLine, found: str) -> None:
        """Says on both sides why a connection is closed; here once, since such a worker may try again."""
        text = f"worker {line.worker or get_address_host(line.comm.peer_address)} sent {found}; its connection is closed"
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            log.warning("%s", text)
        with suppress(CommClosedError, TimeoutError):
            await asyncio.wait_for(line.comm.write([{"op": REFUSED, "found": found}]), 1)
            await asyncio.wait_for(line.comm.close(), 1)


async def _refuse_to_connect(*_: object, **__: object) -> Any:
    raise OSError("the driver connects to nobody")
