"""Opens both ends of a cluster on Dask in this process, or speaks to a driver in bare bytes, and waits for what they tell."""

import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from distributed.protocol.core import dumps
from mlx_bulk.runner.cluster.interface import Event, Joined, Left, Told
from mlx_bulk.runner.cluster.messages import Frame, Frames, Hello
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink

Kind = TypeVar("Kind", Joined, Left, Told)
PATIENCE = 20.0  # seconds; nothing here takes as long


@contextmanager
def fleet(listen: str = "127.0.0.1:0", tls: Path | None = None) -> Generator[DaskFleet]:
    """A fleet that ends with the block."""
    opened = DaskFleet(listen, None if tls is None else str(tls))
    try:
        yield opened
    finally:
        opened.end(dismiss=False)


@contextmanager
def link(address: str, tls: Path | None = None) -> Generator[DriverLink]:
    """A link that is connected, and closed with the block."""
    opened = DriverLink(address, None if tls is None else str(tls))
    try:
        opened.connect()
        yield opened
    finally:
        opened.close()


def next_event(driver: DaskFleet, kind: type[Kind], waiting: list[Event] | None = None) -> Kind:
    """The next event, which is of the ``kind``. waiting: those that came with it."""
    found = driver.events(PATIENCE)
    assert found, f"nothing came in {PATIENCE} seconds; expected {kind.__name__}"
    event = found.pop(0)
    assert isinstance(event, kind), event
    assert waiting is not None or not found, found
    if waiting is not None:
        waiting += found
    return event


def events_until(driver: DaskFleet, kind: type[Kind]) -> list[Event]:
    """All events up to the first of the ``kind``, and those that came with it: a slow driver tells of them one by one."""
    found: list[Event] = []
    while not any(isinstance(event, kind) for event in found):
        more = driver.events(PATIENCE)
        assert more, f"nothing came in {PATIENCE} seconds; expected {kind.__name__}"
        found += more
    return found


def hello(worker: str = "studio-1") -> Hello:
    return Hello(worker, "studio", {"memory": 64, "device": None}, "a1", {"s-1": [3, 4]})


def frames(number: int, size: int = 10) -> Frames:
    return Frames("a1", number, 0, ((3, 1),), ((3, 0),), (Frame("R", bytes([number]) * size, b"sum"),))


def packed(message: object) -> bytes:
    """A message as Dask's connections write it."""
    parts = [bytes(part) for part in dumps(message)]
    lengths = struct.pack(f"{len(parts) + 1}Q", len(parts), *map(len, parts))
    content = lengths + b"".join(parts)
    return struct.pack("Q", len(content)) + content


HANDSHAKE = packed({"compression": None, "python": (3, 11, 0), "pickle-protocol": 4})
REGISTER = packed({"op": "register-worker", "reply": False, "address": "tcp://240.0.0.1:1", "name": "studio-1"})


def connection(driver: DaskFleet) -> socket.socket:
    host, _, port = driver.address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)
