"""A driver for its own workers alone takes no others, and these workers take no other driver."""

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from distributed.protocol.serialize import ToPickle
from mlx_bulk.runner.cluster.interface import Joined
from mlx_bulk.runner.cluster.messages import Ack, RunOffer
from mlx_bulk.runner.network import dask_comms, dask_link
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink
from mlx_bulk.runner.network.shared_secret import is_own_driver, is_own_worker, new_secret
from mlx_bulk.runner.network.wire import to_wire

from .dask_ends import HANDSHAKE, PATIENCE, REGISTER, connection, events_until, fleet, hello, packed

REFUSED = "refused a connection from 127.0.0.1, which is no worker that this run has started"


class Ends:
    """Two ends of a connection in one loop. spoil: what becomes of the bytes that the first end sends."""

    def __init__(self, spoil: Callable[[bytes], bytes] = lambda data: data):
        self._buffers = (bytearray(), bytearray())
        self._spoil = spoil
        self.first, self.second = _End(self, 0), _End(self, 1)

    def send(self, end: int, data: bytes) -> None:
        self._buffers[1 - end].extend(self._spoil(data) if end == 0 else data)

    async def receive(self, end: int, count: int) -> bytes:
        for _ in range(100):
            if len(self._buffers[end]) >= count:
                data = bytes(self._buffers[end][:count])
                del self._buffers[end][:count]
                return data
            await asyncio.sleep(0)
        raise OSError("the other end is gone")


class _End:
    def __init__(self, ends: Ends, number: int):
        self._ends, self._number = ends, number

    async def read_bytes(self, num_bytes: int) -> bytes:
        return await self._ends.receive(self._number, num_bytes)

    async def write(self, data: bytes) -> None:
        self._ends.send(self._number, data)


def met(worker: str, driver: str, spoil: Callable[[bytes], bytes] = lambda data: data) -> tuple[Any, Any]:
    """What each end finds of the other: the worker of the driver first."""

    async def meet() -> tuple[Any, Any]:
        ends = Ends(spoil)
        both = asyncio.gather(is_own_driver(ends.first, worker), is_own_worker(ends.second, driver), return_exceptions=True)
        found, of_worker = await both
        return found, of_worker

    return asyncio.run(meet())


def test_ends_with_one_secret_know_each_other_and_others_do_not() -> None:
    one, other = new_secret(), new_secret()
    assert one != other
    assert met(one, one) == (True, True)
    driver, worker = met(one, other)
    assert driver is False
    assert isinstance(worker, OSError)  # the worker has shown nothing
    driver, worker = met(one, one, spoil=lambda data: bytes(32))
    assert driver is False
    assert isinstance(worker, OSError)


def test_neither_end_can_be_played_what_it_has_sent_itself() -> None:
    """A stranger without the secret sends back to the driver what that has sent."""

    async def meet() -> bool:
        ends, secret = Ends(), new_secret()
        driver = asyncio.create_task(is_own_worker(ends.second, secret))
        await ends.first.write(bytes(32))
        answer = await ends.first.read_bytes(64)
        await ends.first.write(answer[32:])
        return await driver

    assert asyncio.run(meet()) is False


@pytest.fixture(name="secret")
def a_secret() -> str:
    return new_secret()


def test_a_worker_with_the_secret_joins_and_comes_back(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    driver = DaskFleet("127.0.0.1:0", secret=secret)
    worker = DriverLink(driver.address, secret=secret)
    try:
        for _ in range(2):
            worker.connect()
            worker.send(hello())
            assert Joined("studio-1", hello()) in events_until(driver, Joined)
            driver.send("studio-1", Ack("a1", 3))
            assert worker.receive(PATIENCE) == Ack("a1", 3)
    finally:
        worker.close()
        driver.end(dismiss=False)
    assert caplog.messages == []


def test_a_stranger_of_the_same_machine_learns_nothing(
    secret: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_link, "CONNECT_SECONDS", 0.2)  # Dask tries again as long
    driver = DaskFleet("127.0.0.1:0", secret=secret)
    try:
        for strangers in (None, new_secret()):
            stranger = DriverLink(driver.address, secret=strangers)
            with pytest.raises(OSError, match=r".+"):
                stranger.connect()
            stranger.close()
        for content in (HANDSHAKE + REGISTER + packed([{"op": "mlx-bulk", "message": {}}]), bytes(64)):
            with connection(driver) as plain:
                plain.sendall(content)
                answer = b""
                with suppress(ConnectionError):
                    while part := plain.recv(1 << 16):
                        answer += part
                assert len(answer) == 64  # random bytes, and a proof for bytes of the stranger's own
        assert driver.events(0) == []
    finally:
        driver.end(dismiss=False)
    assert caplog.messages == [REFUSED]  # once


def test_one_that_says_nothing_is_let_go(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_comms, "_SECRET_SECONDS", 0.05)
    driver = DaskFleet("127.0.0.1:0", secret=secret)
    try:
        with connection(driver) as silent:
            silent.settimeout(PATIENCE)
            assert silent.recv(1) == b""
    finally:
        driver.end(dismiss=False)


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_worker_takes_nothing_from_whoever_has_its_drivers_port_now(secret: str, tmp_path: Path) -> None:
    with fleet() as driver:  # a stranger's, without the secret
        worker = DriverLink(driver.address, secret=secret)
        with pytest.raises(OSError, match=r".+"):
            worker.connect()
        assert driver.events(0) == []
        worker.close()
    bomb = Bomb(tmp_path / "unpickled")
    offer = RunOffer("a", pickle.dumps(bomb))
    content = packed({"compression": None, "x": ToPickle(bomb)}) + packed([{"op": "mlx-bulk", "message": to_wire(offer)}])

    def serve() -> None:
        with suppress(OSError):
            while True:
                with listening.accept()[0] as peer:
                    peer.sendall(content)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        worker = DriverLink(f"tcp://127.0.0.1:{listening.getsockname()[1]}", secret=secret)
        with pytest.raises(OSError, match="not the driver that has started this worker"):
            worker.connect()
        worker.close()
    assert not bomb.path.exists()
