"""Tests that both ends find out when the other is there no more and cannot say so: a cable that is pulled, a process that hangs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.runner.cluster.interface import Joined, Left
from mlx_bulk.runner.network import dask_fleet, dask_link
from mlx_bulk.runner.network.wire import to_wire

from .dask_ends import HANDSHAKE, PATIENCE, REGISTER, connection, fleet, hello, link, next_event, packed

# Two workers; all packets of the first one's connection are dropped without a word, later they are not.
_CUT = """
import json, subprocess, time
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink
from mlx_bulk.runner.cluster.interface import Joined, Left, Told
from mlx_bulk.runner.cluster.messages import Ack, Hello, LeaseDone

def ip(*arguments):
    subprocess.run(("ip", *arguments), check=True)

def until(kind):
    while True:
        for event in driver.events(60):
            if isinstance(event, kind):
                return event

ip("link", "set", "lo", "up")
driver = DaskFleet("127.0.0.1:0", lost_after=12)
port = driver.address.rpartition(":")[2]
cut, other = DriverLink(driver.address, lost_after=12), DriverLink(driver.address, lost_after=12)
for worker, name in ((cut, "cut"), (other, "other")):
    worker.connect()
    worker.send(Hello(name, "here", {}))
    until(Joined)
    if worker is cut:
        lines = subprocess.run(("ss", "-tnH", "dport", f"= :{port}"), capture_output=True, text=True, check=True).stdout.split()
        own = lines[3].rpartition(":")[2]
ip("rule", "add", "pref", "100", "lookup", "local")
ip("rule", "del", "pref", "0")
for end in ("sport", "dport"):
    ip("rule", "add", "pref", "1", "ipproto", "tcp", end, own, "blackhole")
begin = time.monotonic()
other.send(LeaseDone("a1", "s-1"))
told = until(Told)
gone = until(Left)
seconds = time.monotonic() - begin
try:
    while cut.receive(60) is None:
        pass
except EOFError:
    noticed = time.monotonic() - begin
for end in ("sport", "dport"):
    ip("rule", "del", "pref", "1")
cut.connect()
cut.send(Hello("cut", "again", {}))
again = until(Joined)
driver.send("other", Ack("a1", 1))
print(json.dumps([told.worker, gone.worker, gone.reason, seconds, noticed, again.hello.host, other.receive(60).number]))
"""


@pytest.mark.slow
def test_a_pulled_cable_is_noticed_at_both_ends_and_the_worker_comes_back(tmp_path: Path) -> None:
    apart = ("unshare", "-n")
    if subprocess.run((*apart, "ip", "rule"), capture_output=True, check=False).returncode:
        pytest.skip("needs a network namespace of its own, which only root gets, and ip")
    done = subprocess.run((*apart, sys.executable, "-c", _CUT), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, gone, reason, seconds, noticed, again, number = json.loads(done.stdout)
    assert (told, gone, reason, again, number) == ("other", "cut", "the connection is gone", "again", 1)
    assert 12 <= seconds < 12 + 5  # lost_after, and what may pass until something is sent
    assert noticed < 12 + 5


def test_a_worker_that_hangs_is_taken_for_gone_and_one_that_lives_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_link, "ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(dask_fleet, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(dask_fleet, "HANGING", 0.5 / 30)  # half a second
    with fleet() as driver, link(driver.address) as lives, connection(driver) as hangs:
        lives.send(hello("lives"))
        next_event(driver, Joined)
        hangs.sendall(HANDSHAKE + REGISTER + packed([{"op": "mlx-bulk", "message": to_wire(hello("hangs"))}]))
        assert next_event(driver, Joined).worker == "hangs"
        left = next_event(driver, Left)
        assert left.worker == "hangs"
        assert left.reason.startswith("no sign of life for ")
        assert driver.workers() == ["lives"]


def test_a_driver_that_hangs_is_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_link, "ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(dask_link, "HANGING", 0.1 / 30)
    monkeypatch.setattr(dask_fleet, "ALIVE_SECONDS", 1000.0)
    with fleet() as driver, link(driver.address) as worker:
        worker.send(hello())
        with pytest.raises(EOFError):
            worker.receive(PATIENCE)
