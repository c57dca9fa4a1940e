"""Tests that nobody who reaches the driver's port makes it run or unpickle anything, or takes another's place."""

import asyncio
import pickle
import struct
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler
from distributed.batched import BatchedSend
from distributed.comm.core import connect
from distributed.protocol.core import dumps, loads
from distributed.protocol.serialize import Serialize, Serialized, ToPickle
from mlx_bulk.runner.cluster.interface import Event, Joined, Left, Told
from mlx_bulk.runner.cluster.messages import Ack, LeaseDone
from mlx_bulk.runner.network import dask_fleet
from mlx_bulk.runner.network.dask_comms import dask_settings
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink
from mlx_bulk.runner.network.wire import to_wire

from .dask_ends import HANDSHAKE, PATIENCE, REGISTER, connection, events_until, fleet, frames, hello, link, next_event, packed


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def bomb(tmp_path: Path) -> Bomb:
    return Bomb(tmp_path / "unpickled")


@pytest.fixture
def driver(bomb: Bomb) -> Generator[DaskFleet]:
    """A driver with a worker; at the end both must work, and the bomb must not have gone off."""
    with fleet() as opened, link(opened.address) as worker:
        worker.send(hello())
        next_event(opened, Joined)
        yield opened
        still_works(opened, worker)
    assert not bomb.path.exists()


def still_works(driver: DaskFleet, worker: DriverLink) -> None:
    worker.send(LeaseDone("a1", "s-1"))
    done, told = Told("studio-1", LeaseDone("a1", "s-1")), list[Event]()
    while done not in told:  # events of other workers may stand before and behind it
        told = driver.events(PATIENCE)
        assert told
        assert all(event == done or event.worker != "studio-1" for event in told), told
    driver.send("studio-1", Ack("a1", 1))
    assert worker.receive(PATIENCE) == Ack("a1", 1)


def payloads(bomb: Bomb) -> list[Any]:
    """A pickle in all forms in which Dask puts one into a message."""
    header, content = {"serializer": "pickle", "writeable": ()}, [pickle.dumps(bomb)]
    theirs = {"serializer": "dask", "type": "x", "type-serialized": pickle.dumps(bomb), "sub-header": {}}
    return [ToPickle(bomb), Serialize(bomb), Serialized(header, content), Serialized(theirs, content), pickle.dumps(bomb)]


def told_to(driver: DaskFleet, *content: bytes, patience: float = 0.03) -> bytes:
    """What the driver answers to the bytes, up to the end of the connection; for ``patience`` seconds where it does not end it."""
    with connection(driver) as stranger:
        stranger.settimeout(patience)
        for part in content:
            stranger.sendall(part)
        answer = b""
        try:
            while part := stranger.recv(1 << 16):
                answer += part
        except (ConnectionError, TimeoutError):
            pass
        return answer


def test_dasks_own_connections_unpickle_what_a_stranger_sends(bomb: Bomb) -> None:
    """Why there are connections of our own: the others do so even where they are told not to deserialize, as in a scheduler."""
    loads([bytes(part) for part in dumps({"op": "identity", "x": ToPickle(bomb)})], deserialize=False)
    assert bomb.path.exists()


def test_no_message_is_unpickled_wherever_the_pickle_stands(driver: DaskFleet, bomb: Bomb) -> None:
    for payload in payloads(bomb):
        told_to(driver, packed({"compression": payload, "python": (3, 11, 0), "pickle-protocol": 4}))
        told_to(driver, HANDSHAKE, packed({"op": "identity", "x": payload}))
        told_to(driver, HANDSHAKE, packed(payload))
        for field in ("extra", "metrics", "versions", "nanny", "op"):
            told_to(driver, HANDSHAKE, packed({"op": "register-worker", "reply": False, field: payload}))
        for content in (payload, [{"op": "mlx-bulk", "message": payload}], [{"op": "keep-alive", "x": payload}]):
            told_to(driver, HANDSHAKE, REGISTER, packed(content))
        wire = {**to_wire(frames(1)), "frames": [payload]}
        told_to(
            driver,
            HANDSHAKE,
            REGISTER,
            packed([{"op": "mlx-bulk", "message": to_wire(hello("x"))}]),
            packed([{"op": "mlx-bulk", "message": wire}]),
        )


def test_no_call_that_a_scheduler_knows_is_answered(driver: DaskFleet, bomb: Bomb) -> None:
    async def call(op: str) -> Any:
        comm = await connect(driver.address)
        await comm.write({"op": op, "function": pickle.dumps(bomb), "plugin": pickle.dumps(bomb), "setup": pickle.dumps(bomb)})
        try:
            return await asyncio.wait_for(comm.read(), 0.02)
        except (OSError, TimeoutError):
            return None
        finally:
            comm.abort()

    async def all_calls() -> dict[str, Any]:
        return dict(zip(ops, await asyncio.gather(*map(call, ops)), strict=True))

    ops = stock_handlers()
    assert {"run_function", "feed", "proxy", "register-client", "register_scheduler_plugin", "terminate", "broadcast"} <= set(ops)
    assert {op: answer for op, answer in asyncio.run(all_calls()).items() if answer is not None} == {}


def stock_handlers() -> list[str]:
    """What Dask's own scheduler answers to, but the one that joins."""

    async def made() -> list[str]:
        scheduler = Scheduler(dashboard=False, port=0, dashboard_address=":0")
        try:
            return sorted({*scheduler.handlers, *scheduler.stream_handlers} - {"register-worker"})
        finally:
            await scheduler.close()

    return asyncio.run(made())


def test_a_client_of_dask_gets_no_connection(driver: DaskFleet) -> None:
    with pytest.raises((OSError, TimeoutError, TypeError)):  # it finds no words for the answer, which is none
        Client(driver.address, timeout=0.3, set_as_default=False)


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        struct.pack("Q", 2**62),
        struct.pack("QQ", 2**40, 2**60),
        struct.pack("QQQ", 20, 1, 2**63),
        struct.pack("QQQ", 16, 1, 3) + b"\xc1\xc1\xc1",
        HANDSHAKE + struct.pack("QQQ", 16 + 4, 1, 4) + b"\xd4\x05xx",  # an extension type
        HANDSHAKE + packed({"op": "register-worker", "comm": 1, "stimulus_id": 2}),
        HANDSHAKE + packed([[[]]]),
        packed(7),
        HANDSHAKE + REGISTER + packed([7, None, "x"]),
    ],
)
def test_bytes_that_are_no_messages_end_their_own_connection_alone(driver: DaskFleet, content: bytes) -> None:
    told_to(driver, content)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([to_wire(frames(1))], "Frames before Hello"),
        ([{"type": "Hello"}], "what this version of mlx-bulk does not know"),
        ([to_wire(hello("x")), {"type": "Erase", "path": "\x1b[2J"}], "expected one of RunOffer, Lease"),
        ([to_wire(hello("x")), to_wire(hello("y"))], "Hello, which it may not send"),
        ([to_wire(hello("x")), to_wire(Ack("a1", 1))], "Ack, which it may not send"),
        ([to_wire(hello("x\n"))], "a name that is empty, too long or not printable"),
        ([to_wire(hello("x" * 999))], "a name that is empty, too long or not printable"),
    ],
)
def test_a_worker_that_sends_what_none_sends_is_named_and_its_connection_closed(
    driver: DaskFleet, messages: list[dict[str, Any]], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    told_to(driver, HANDSHAKE, REGISTER, packed([{"op": "mlx-bulk", "message": message} for message in messages]), patience=PATIENCE)
    if len(messages) > 1:
        waiting: list[Event] = []
        assert next_event(driver, Joined, waiting) == Joined("x", hello("x"))
        (left,) = waiting or driver.events(PATIENCE)
        assert isinstance(left, Left)
        assert told in left.reason
    (line,) = caplog.messages
    assert line.startswith("worker x sent" if len(messages) > 1 else "worker 127.0.0.1 sent")
    assert told in line
    assert line.endswith("its connection is closed")
    assert line.isprintable()


def test_a_message_cannot_say_that_it_is_another_workers(driver: DaskFleet) -> None:
    stolen = {"op": "mlx-bulk", "worker": "tcp://240.0.0.1:1", "message": to_wire(LeaseDone("a1", "stolen"))}
    told_to(driver, HANDSHAKE, REGISTER, packed([{"op": "mlx-bulk", "message": to_wire(hello("x"))}, stolen]))
    events = events_until(driver, Told)
    assert Told("x", LeaseDone("a1", "stolen")) in events
    assert all(event.worker == "x" for event in events)


def test_a_driver_that_takes_nothing_holds_a_worker_back(driver: DaskFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_fleet, "FULL_BYTES", 1 << 20)
    content = packed([{"op": "mlx-bulk", "message": to_wire(frames(1, 1 << 20))}])
    with connection(driver) as worker:
        worker.sendall(HANDSHAKE + REGISTER + packed([{"op": "mlx-bulk", "message": to_wire(hello("x"))}]))
        worker.settimeout(0.3)
        with pytest.raises(TimeoutError):
            worker.sendall(content * 64)
        assert 1 <= sum(isinstance(event, Told) for event in events_until(driver, Told)) <= 2
        assert driver.events(PATIENCE)  # it reads on


@pytest.mark.slow
def test_a_driver_that_takes_nothing_holds_what_is_left_of_all_workers_together(driver: DaskFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_fleet, "FULL_BYTES", 1 << 20)
    content = packed([{"op": "mlx-bulk", "message": to_wire(frames(1, 600 << 10))}])
    with ExitStack() as connections:
        for number in range(3):
            worker = connections.enter_context(connection(driver))
            worker.sendall(HANDSHAKE + REGISTER + packed([{"op": "mlx-bulk", "message": to_wire(hello(f"w{number}"))}]))
            worker.settimeout(0.3)
            with pytest.raises(TimeoutError):
                worker.sendall(content * 16)
        assert sum(isinstance(event, Told) for event in events_until(driver, Told)) == 1
        told: set[str] = set()
        while len(told) < 3:
            events = driver.events(PATIENCE)
            assert events
            told |= {event.worker for event in events if isinstance(event, Told)}


def test_a_worker_that_falls_silent_within_a_message_holds_back_no_other(driver: DaskFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_fleet, "FULL_BYTES", 1 << 20)
    monkeypatch.setattr(dask_fleet, "_READING_SECONDS", 0.05)
    half = packed([{"op": "mlx-bulk", "message": to_wire(frames(1, 1 << 20))}])[: 1 << 19]
    with connection(driver) as silent, connection(driver) as other:
        silent.sendall(HANDSHAKE + REGISTER + half)
        other.sendall(HANDSHAKE + REGISTER + packed([{"op": "mlx-bulk", "message": to_wire(hello("x"))}]))
        assert next_event(driver, Joined).worker == "x"
        for number in range(3):
            other.sendall(packed([{"op": "mlx-bulk", "message": to_wire(frames(number, 600 << 10))}]))
            assert next_event(driver, Told).worker == "x"


def test_messages_that_were_sent_are_not_kept() -> None:
    with dask_settings(lost_after=5.0):
        assert BatchedSend(interval=0.01).recent_message_log.maxlen == 1  # Dask's own: 1,000 of up to 1 MB a connection
