"""Tests both ends of a cluster on Dask against each other: joining, messages, and connections that end in all ways."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.cluster.interface import Event, Joined, Left, Told
from mlx_bulk.runner.cluster.messages import Ack, Dismiss, Lease, LeaseDone
from mlx_bulk.runner.network import dask_fleet
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink
from mlx_bulk.runner.network.wire import to_wire

from .dask_ends import PATIENCE, fleet, frames, hello, link, next_event

MEGABYTE = 1 << 20


def taken(driver: DaskFleet, count: int) -> list[object]:
    """The next messages, which are all that comes."""
    found: list[object] = []
    while len(found) < count:
        events = driver.events(PATIENCE)
        assert events
        found += [event.message for event in events if isinstance(event, Told)]
    return found


def test_a_worker_joins_with_its_hello_and_leaves() -> None:
    with fleet() as driver:
        assert driver.address.startswith("tcp://127.0.0.1:")
        with link(driver.address) as worker:
            assert driver.events(0) == []  # it has connected, and not said who it is
            worker.send(hello())
            assert next_event(driver, Joined) == Joined("studio-1", hello())
            assert driver.workers() == ["studio-1"]
        assert next_event(driver, Left) == Left("studio-1", "it has closed its connection", in_order=True)
        assert driver.workers() == []


def test_messages_of_megabytes_come_whole_and_in_order_both_ways() -> None:
    with fleet() as driver, link(driver.address) as worker:
        worker.send(hello())
        next_event(driver, Joined)
        sent = [frames(number, 5 * MEGABYTE) for number in range(1, 5)]
        leases = [Lease("a1", f"s-{number}", 0, bytes([number]) * 5 * MEGABYTE, ((3, 0),)) for number in range(4)]
        for message in sent:
            worker.send(message)
        for lease in leases:
            driver.send("studio-1", lease)
        assert taken(driver, 4) == sent
        assert [worker.receive(PATIENCE) for _ in leases] == leases
        assert worker.receive(0) is None


def test_a_message_to_a_worker_that_is_gone_is_lost_and_does_not_reach_its_next_connection() -> None:
    with fleet() as driver:
        driver.send("nobody", Ack("a1", 1))
        with link(driver.address) as first, link(driver.address) as second:
            first.send(hello())
            next_event(driver, Joined)
            second.send(hello())
            with pytest.raises(EOFError):
                first.receive(PATIENCE)
            driver.send("studio-1", Ack("a1", 1))  # to the connection that the driver knows of
            waiting: list[Event] = []
            assert next_event(driver, Left, waiting) == Left("studio-1", "it has connected again")
            assert (waiting or driver.events(PATIENCE)) == [Joined("studio-1", hello())]
            driver.send("studio-1", Ack("a1", 2))
            assert second.receive(PATIENCE) == Ack("a1", 2)
            assert driver.workers() == ["studio-1"]


def test_a_worker_finds_a_driver_that_is_started_again() -> None:
    with fleet() as driver:
        address = driver.address
        worker = DriverLink(address)
        worker.connect()
        worker.send(hello())
        next_event(driver, Joined)
    with pytest.raises(EOFError, match=address):
        worker.receive(PATIENCE)
    worker.send(LeaseDone("a1", "s-1"))  # dropped
    with pytest.raises(OSError, match="Connection refused"):
        worker.connect()
    with fleet(address.removeprefix("tcp://")) as driver:
        worker.connect()
        worker.send(hello())
        assert next_event(driver, Joined).worker == "studio-1"
        driver.send("studio-1", Ack("a1", 7))
        assert worker.receive(PATIENCE) == Ack("a1", 7)
        worker.close()


def test_a_worker_behind_a_tunnel_needs_one_outgoing_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    """As through ``ssh -R``: the driver has another address than the worker knows."""
    with fleet() as driver, tunnel(driver.address) as port, link(f"tcp://localhost:{port}") as worker:
        worker.send(hello())
        assert next_event(driver, Joined).worker == "studio-1"
        worker.send(frames(1, 3 * MEGABYTE))
        driver.send("studio-1", Ack("a1", 1))
        assert taken(driver, 1) == [frames(1, 3 * MEGABYTE)]
        assert worker.receive(PATIENCE) == Ack("a1", 1)
    assert caplog.messages == []


@contextmanager
def tunnel(address: str) -> Generator[int]:
    """A port from which bytes are passed on to the address."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, far = listening.accept()[0], socket.create_connection((host, int(port)))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def test_a_worker_that_the_driver_refuses_is_told_why_and_does_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    with fleet() as driver, link(driver.address) as worker:
        worker.send(hello())
        worker.send(Ack("a1", 1))
        with pytest.raises(EOFError):
            worker.receive(PATIENCE)
        with pytest.raises(ConfigError, match="the driver refused this worker, which sent Ack, which it may not send"):
            worker.connect()
    assert caplog.messages == ["worker studio-1 sent Ack, which it may not send; its connection is closed"]


def test_a_worker_that_does_not_know_a_message_of_the_driver_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_fleet, "to_wire", lambda message: {**to_wire(message), "later": 1})  # pyright: ignore[reportUnknownLambdaType]
    with fleet() as driver, link(driver.address) as worker:
        worker.send(hello())
        next_event(driver, Joined)
        driver.send("studio-1", Ack("a1", 1))
        with pytest.raises(EOFError):
            worker.receive(PATIENCE)
        with pytest.raises(ConfigError, match=r"the driver sent what this worker does not know \(Ack: found unknown fields later\)"):
            worker.connect()


def test_a_fault_of_the_fleets_own_thread_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(dask_fleet, "ALIVE_SECONDS", 0.01)
    driver = DaskFleet("127.0.0.1:0")
    monkeypatch.setattr(DaskFleet, "_look", fail)
    with pytest.raises(RuntimeError, match="the thread that holds the connections of workers has ended"):
        driver.events(PATIENCE)
    driver.end(dismiss=True)


def test_dismissed_workers_are_told_before_the_connection_ends() -> None:
    driver = DaskFleet("127.0.0.1:0")
    with link(driver.address) as worker:
        worker.send(hello())
        next_event(driver, Joined)
        driver.end(dismiss=True)
        assert worker.receive(PATIENCE) == Dismiss()
        with pytest.raises(EOFError):
            worker.receive(PATIENCE)


_WORKER = """
import sys
from mlx_bulk.runner.network.dask_link import DriverLink
from mlx_bulk.runner.cluster.messages import Hello, RunFailed
import psutil
link = DriverLink(sys.argv[1])
link.connect()
link.send(Hello("killed", "here", {"ports": sum(each.status == "LISTEN" for each in psutil.Process().net_connections())}))
print(link.receive(None))
"""


def test_a_killed_worker_is_gone_and_no_process_has_a_port_but_the_drivers(tmp_path: Path) -> None:
    (tmp_path / "preload.py").write_text("open('preloaded', 'w')\n")
    theirs = {f"DASK_DISTRIBUTED__{end}__PRELOAD": "preload.py" for end in ("SCHEDULER", "WORKER")}
    with fleet() as driver:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, driver.address], cwd=tmp_path, env={**os.environ, **theirs}, stderr=subprocess.PIPE
        )
        try:
            assert next_event(driver, Joined).hello.facts == {"ports": 0}
            ours = [each.laddr.port for each in psutil.Process().net_connections() if each.status == "LISTEN"]
            assert ours == [int(driver.address.rpartition(":")[2])]
            os.kill(process.pid, signal.SIGKILL)
            assert next_event(driver, Left) == Left("killed", "the connection is gone")
        finally:
            process.kill()
            _, said = process.communicate()
    assert said == b""  # nothing of Dask's on the terminal
    assert not (tmp_path / "preloaded").exists()


def test_an_address_that_cannot_be_used_is_refused() -> None:
    with fleet() as driver:
        place = driver.address.removeprefix("tcp://")
        with pytest.raises(
            ConfigError, match=rf"cluster.listen: found {place}, where this machine cannot listen \(Address already in use\)"
        ):
            DaskFleet(place)
    with pytest.raises(ConfigError, match="other machines can reach"):
        DaskFleet("0.0.0.0:0")
