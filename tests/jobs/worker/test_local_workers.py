"""Tests workers on the driver's own machine, and the command that each of them is, with a driver that listens on loopback."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import ClassVar

import psutil
import pytest
from mlx_bulk.jobs.worker import local_workers
from mlx_bulk.jobs.worker.agent import NO_DRIVER
from mlx_bulk.jobs.worker.local_workers import THREADS, LocalWorkers, worker_environment

from ...runner.pipeline.test_progress_display import heard

distributed = pytest.importorskip("distributed")
from mlx_bulk.runner.cluster.interface import Joined  # noqa: E402
from mlx_bulk.runner.network.dask_fleet import DaskFleet  # noqa: E402

PATIENCE = 60.0  # seconds after which a test that waits has failed
IDLE_BYTES = 60_000_000  # of a worker that waits: Python, Dask's connections, and little more


@pytest.fixture
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*THREADS, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(local_workers.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(local_workers.os, "cpu_count", lambda: 8)


@pytest.mark.usefixtures("plain_machine")
@pytest.mark.parametrize(("count", "threads", "each"), [(2, None, "4"), (3, None, "2"), (20, None, "1"), (2, 8, "8")])
def test_cores_are_divided_unless_bits_hang_on_their_number(count: int, threads: int | None, each: str):
    assert worker_environment(0, count, threads) == dict.fromkeys(THREADS, each)


@pytest.mark.usefixtures("plain_machine")
def test_threads_that_the_user_has_set_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert worker_environment(0, 2, None)["OPENBLAS_NUM_THREADS"] == "3"
    assert worker_environment(0, 2, 8)["OPENBLAS_NUM_THREADS"] == "8"


@pytest.mark.usefixtures("plain_machine")
def test_gpus_are_divided(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6")
    assert [worker_environment(number, 3, None)["CUDA_VISIBLE_DEVICES"] for number in range(3)] == ["4", "6", "4"]


def joined(fleet: DaskFleet, count: int) -> list[Joined]:
    """Waits for so many workers."""
    found: list[Joined] = []
    deadline = monotonic() + PATIENCE
    while len(found) < count and monotonic() < deadline:
        found += [event for event in fleet.events(1.0) if isinstance(event, Joined)]
    assert len(found) == count
    return found


@contextmanager
def listening() -> Generator[DaskFleet]:
    fleet = DaskFleet("127.0.0.1:0")
    try:
        yield fleet
    finally:
        fleet.end(dismiss=True)


def test_local_workers_join_and_leave_when_they_are_dismissed(capfd: pytest.CaptureFixture[str]):
    with listening() as fleet:
        workers = LocalWorkers(1, fleet.address, wait=PATIENCE)
        (one,) = joined(fleet, 1)
        assert one.worker.startswith("local-1-")
        assert one.hello.facts["cores"] == os.cpu_count()
        assert (one.hello.run, one.hello.leases, workers.ended) == (None, {}, [])
        workers.note_joined(one.worker)
        assert psutil.Process(int(str(one.hello.facts["pid"]))).memory_info().rss <= IDLE_BYTES
    workers.end()
    assert workers.ended == [0]
    assert capfd.readouterr().err.splitlines() == [f"mlx-bulk: local-1: joined the driver as {one.worker}"]


DRIVER = """
import sys
from mlx_bulk.jobs.worker.local_workers import LocalWorkers
from mlx_bulk.runner.cluster.interface import Joined
from mlx_bulk.runner.network.dask_fleet import DaskFleet
fleet, count = DaskFleet("127.0.0.1:0"), int(sys.argv[1])
workers = LocalWorkers(count, fleet.address, wait=60.0, threads=1)
print(fleet.address, flush=True)
while count:
    for event in fleet.events(1.0):
        if isinstance(event, Joined):
            print(event.worker, flush=True)
            count -= 1
while True:
    fleet.events(1.0)
"""


def orphans_of_a_killed_driver(count: int) -> tuple[str, list[str]]:
    """Starts a driver with so many workers and kills it. Returns its address, and the names of the workers in order."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(count)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    address, *names = [driver.stdout.readline().strip() for _ in range(count + 1)]
    driver.kill()
    driver.wait()
    return address, sorted(names)


@pytest.mark.slow
def test_workers_of_a_killed_driver_are_taken_over_and_started_again_when_they_die():
    address, names = orphans_of_a_killed_driver(2)
    with listening_again(address) as fleet:
        workers = LocalWorkers(2, address, wait=PATIENCE, threads=1)
        again = joined(fleet, 2)
        assert sorted(event.worker for event in again) == names
        os.kill(int(names[0].split("-")[2]), signal.SIGKILL)
        with heard() as handler:
            new: list[Joined] = []
            while not new:
                new = [event for event in fleet.events(0.2) if isinstance(event, Joined)]
                workers.tend()
        assert handler.messages == ["local-1 is gone: it is started again"]
        assert new[0].worker.startswith("local-1-")
        assert new[0].worker != names[0]
        for event in (new[0], *again):
            workers.note_joined(event.worker)
        fleet.end(dismiss=True)
        workers.end()
    assert not any(psutil.pid_exists(int(name.split("-")[2])) and is_at_work(name) for name in names)


def is_at_work(name: str) -> bool:
    return psutil.Process(int(name.split("-")[2])).status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_workers_of_a_killed_driver_that_do_not_fit_leave():
    address, names = orphans_of_a_killed_driver(2)
    with listening_again(address) as fleet:
        with heard() as handler:
            workers = LocalWorkers(1, address, wait=PATIENCE, threads=1)
        assert handler.messages == ["local-1 of an earlier start works on"]
        assert not psutil.pid_exists(int(names[1].split("-")[2])) or not is_at_work(names[1])
        other = LocalWorkers(1, address, wait=PATIENCE, threads=2)
        assert workers.ended != []
        deadline, new = monotonic() + PATIENCE, list[str]()
        while not new and monotonic() < deadline:
            new = [event.worker for event in fleet.events(1.0) if isinstance(event, Joined) and event.worker not in names]
        other.note_joined(new[0])
        fleet.end(dismiss=True)
        other.end()
    assert other.ended == [0]


class Ending:
    """Stands for a worker's process that ends with the next of ``codes``, and then runs on."""

    codes: ClassVar[list[int]] = []

    def __init__(self, command: list[str], **_: object):
        self.name, self.returncode = command[-1], Ending.codes.pop(0) if Ending.codes else None

    def poll(self) -> int | None:
        return self.returncode


def tended(monkeypatch: pytest.MonkeyPatch, codes: list[int], rows_after: int = 99) -> list[str]:
    """Tends one worker that ends with these codes; after ``rows_after`` of them it has finished a row. Returns what is said."""
    monkeypatch.setattr(local_workers.subprocess, "Popen", Ending)
    Ending.codes = list(codes)
    with heard() as handler:
        workers = LocalWorkers(1, "tcp://127.0.0.1:9", wait=1.0)
        for number in range(len(codes) + 2):
            workers.tend()
            if number == rows_after:
                workers.note_row("local-1-77-abc")
    return handler.messages


AGAIN = "local-1 died of SIGKILL: it is started again"


def test_a_worker_of_this_machine_that_dies_is_started_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch):
    assert tended(monkeypatch, [-9]) == [AGAIN]
    given_up = "local-1 has ended 3 times without a finished row, the last time it ended with code 1: it is not started again"
    assert tended(monkeypatch, [-9, -9, 1, -9]) == [AGAIN, AGAIN, given_up]
    assert tended(monkeypatch, [-9, -9, -9, -9], rows_after=1) == [AGAIN] * 4


@pytest.mark.parametrize("code", [0, 2, 128 + signal.SIGTERM])
def test_a_worker_of_this_machine_that_was_asked_to_leave_stays_away(monkeypatch: pytest.MonkeyPatch, code: int):
    assert tended(monkeypatch, [code]) == []


def worker(address: str, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", "mlx_bulk.jobs", "worker", address, *options]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_worker_stays_for_the_next_driver_and_leaves_at_a_signal():
    first = DaskFleet("127.0.0.1:0")
    process = worker(first.address, "--name", "mac")
    (before,) = joined(first, 1)
    first.end(dismiss=True)
    with listening_again(first.address) as second:
        (after,) = joined(second, 1)
        assert after.worker == before.worker
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE)[1].splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    assert [line for line in said if "no driver answers" not in line] == [
        f"mlx-bulk: mac: joined the driver as {before.worker}",
        "mlx-bulk: mac: the run has ended: waiting for the next one",
        "mlx-bulk: mac: the connection to the driver is lost: waiting for it",
        f"mlx-bulk: mac: joined the driver as {before.worker}",
        "mlx-bulk: mac: SIGTERM: sending finished rows and leaving (again: leave at once)",
    ]


@contextmanager
def listening_again(address: str) -> Generator[DaskFleet]:
    fleet = DaskFleet(address.removeprefix("tcp://"))
    try:
        yield fleet
    finally:
        fleet.end(dismiss=False)


@pytest.mark.slow
def test_a_worker_without_a_driver_leaves_when_it_was_told_to():
    process = worker("tcp://127.0.0.1:9", "--wait", "0.5")
    said = process.communicate(timeout=PATIENCE)[1].splitlines()
    assert process.returncode == NO_DRIVER
    assert said[0].startswith("mlx-bulk: no driver answers at tcp://127.0.0.1:9 (")
    assert said[1:] == ["mlx-bulk: no driver for 0.5 s: this worker leaves"]


@pytest.mark.parametrize("address", ["tcp://10.1.2.3:8786", pytest.param("nonsense", marks=pytest.mark.slow)])
def test_an_address_that_is_not_safe_is_refused(address: str):
    process = worker(address)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert said.count("\n") == 1
    assert address in said


class Starting:
    """The process of a worker. It ends when it is told to, or waited for."""

    all: ClassVar[list["Starting"]] = []

    def __init__(self, *_: object, **__: object) -> None:
        self.calls = list[str]()
        self.returncode: int | None = None
        self.all.append(self)

    def __class_getitem__(cls, _: object) -> type["Starting"]:
        return cls

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.calls.append("terminate")

    kill = terminate

    def wait(self, _: float) -> None:
        self.calls.append("wait")
        self.returncode = 0


def test_workers_that_have_not_joined_are_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_workers.subprocess, "Popen", Starting)
    monkeypatch.setattr(Starting, "all", [])
    workers = LocalWorkers(2, "tcp://127.0.0.1:1", wait=1.0)
    workers.note_joined("local-2-77-ab12")
    workers.end()
    assert [each.calls[0] for each in Starting.all] == ["terminate", "wait"]
