"""A driver that is started again takes what its workers have done meanwhile, and gives none of it out again. Workers are threads here."""

import pickle
import shutil
from dataclasses import replace
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.held_leases import HeldLeases
from mlx_bulk.runner.cluster.messages import Ack, Frame, Frames, FromWorker, Hello, Lease, LeaseDone, ToWorker
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.paths import RunPaths

from ..jobs.support.bench import Bench
from ..jobs.support.cluster_rollouts import over, roll, step, versions
from ..jobs.support.cluster_rollouts import records as rollouts
from ..jobs.support.cluster_runs import SETTINGS, engine, parts, records, run
from ..runner.support.thread_fleet import ThreadFleet


class LostDriver:
    """Keeps what a worker says of its first ``leases`` leases from the driver, and then ends the driver."""

    def __init__(self, leases: int):
        self.kept: list[FromWorker] = []
        self._leases = leases

    def watch(self, worker: str, message: FromWorker) -> bool:
        """For ``ThreadFleet``."""
        if not isinstance(message, Frames | LeaseDone):
            return True
        if not self.stopped():
            self.kept.append(message)
        return False

    def stopped(self) -> bool:
        """Returns True once the worker has done so many leases."""
        return sum(isinstance(message, LeaseDone) for message in self.kept) >= self._leases


def positions(lease: Lease) -> list[int]:
    return [row.position for row in pickle.loads(lease.rows)]


def given(fleet: ThreadFleet) -> dict[str, list[int]]:
    """The rows of each lease."""
    return {message.lease: positions(message) for _, message in fleet.sent if isinstance(message, Lease)}


def returned(lost: LostDriver, fleet: ThreadFleet) -> Hello:
    """What the worker tells the next driver: the leases that it has done."""
    done = [message.lease for message in lost.kept if isinstance(message, LeaseDone)]
    digest = next(message.run for message in lost.kept if isinstance(message, Frames))
    return Hello("worker-1", "here", {"name": "worker-1"}, digest, {name: rows for name, rows in given(fleet).items() if name in done})


@pytest.mark.slow
@pytest.mark.parametrize("sections", [{}, {"batch": {"deterministic": True}}, {"sampling": {"n": 3, "max_tokens": 4}}])
def test_leases_that_were_done_while_the_driver_was_away_are_not_done_again(bench: Bench, sections: dict[str, Any]):
    run(bench, ModelWork(ModelPool()), "plain", **sections)
    lost = LostDriver(2)
    before = ThreadFleet(engine, 1, lost.watch)
    assert not run(bench, ClusterWork(lambda: before, ClusterConfig(**SETTINGS)), "cluster", HostProcess(lost.stopped), **sections).rows
    before.end(True)
    hello = returned(lost, before)
    fleet = ThreadFleet(engine, 1, hello=hello)
    for message in lost.kept:
        fleet.tell("worker-1", message)
    again = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", **sections)
    fleet.end(True)
    assert (again.complete, again.errors) == (True, 0)
    assert records(bench, "cluster") == records(bench, "plain")
    if "batch" in sections:
        assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    rows = [position for each in (*hello.leases.values(), *given(fleet).values()) for position in each]
    assert sorted(rows) == list(range(again.of))  # each row was given out once
    lines = read_lines(RunPaths(bench.root / "cluster").workers)
    assert sum(line.get("rows", 0) for line in lines) == again.of
    assert not any("again" in line for line in lines)
    assert any(isinstance(message, Ack) for _, message in fleet.sent)


@pytest.mark.slow
def test_records_of_a_run_that_was_removed_are_not_taken(bench: Bench):
    """The worker has done its leases while the driver was away. The new driver has removed the run, and begins it anew."""
    lost = LostDriver(2)
    before = ThreadFleet(engine, 1, lost.watch)
    run(bench, ClusterWork(lambda: before, ClusterConfig(**SETTINGS)), "cluster", HostProcess(lost.stopped))
    before.end(True)
    shutil.rmtree(bench.root / "cluster")
    fleet = ThreadFleet(engine, 1, hello=returned(lost, before))
    for message in lost.kept:
        fleet.tell("worker-1", message)
    again = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster")
    fleet.end(True)
    assert again.complete
    assert sorted(position for each in given(fleet).values() for position in each) == list(range(again.of))
    frames = next(message for message in lost.kept if isinstance(message, Frames))
    assert ("worker-1", Ack(frames.run, frames.number)) in fleet.sent  # so that the worker forgets them


@pytest.mark.slow
def test_no_worker_is_blamed_for_a_policy_that_the_shard_has_no_more(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is recorded when the driver is killed, so the new one names the policy of each shard anew: the trainer's newest."""
    monkeypatch.setattr("mlx_bulk.runner.leasing.track_record.MOST_DAMAGED", 1)
    lost = LostDriver(2)
    before = ThreadFleet(engine, 1, lost.watch)
    roll(bench, over(before), HostProcess(lost.stopped))
    before.end(True)
    step(bench, 3)
    fleet = ThreadFleet(engine, 1, hello=returned(lost, before))
    for message in lost.kept:
        fleet.tell("worker-1", message)
    again = roll(bench, over(fleet))
    fleet.end(True)
    assert again.complete
    assert set().union(*versions(rollouts(bench)).values()) == {3}
    assert caplog.text.count("worker-1 sent records that are too late (policy 0-") >= 2
    assert "not used" not in caplog.text
    lines = read_lines(RunPaths(bench.root / "cluster").workers)
    assert {line["cause"] for line in lines if "again" in line} == {"records refused"}
    assert sum(line.get("again", 0) for line in lines) == len({row for rows in returned(lost, before).leases.values() for row in rows})


@pytest.mark.slow
def test_a_worker_that_samples_with_another_policy_than_its_leases_name_is_not_used(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mlx_bulk.runner.leasing.track_record.MOST_DAMAGED", 1)
    fleet = ThreadFleet(engine, 2)
    step(bench, 3)
    send = fleet.send

    def mislead(worker: str, message: ToWorker) -> None:
        wrong = worker == "worker-1" and isinstance(message, Lease)
        send(worker, replace(message, policy=base) if wrong and (base := base_of(bench)) else message)

    monkeypatch.setattr(fleet, "send", mislead)
    done = roll(bench, over(fleet, min_workers=2, speculate=False))
    fleet.end(True)
    assert done.complete
    assert set().union(*versions(rollouts(bench)).values()) == {3}
    assert "worker-1 is not used: it sent damaged records 1 times" in caplog.text


def base_of(bench: Bench) -> str:
    """The name of the policy that a run begins with."""
    return next(path.name for path in (bench.root / "cluster" / "policies").glob("0-*"))


def halves(message: Frames) -> list[Frames]:
    """The message as two, each with its part of the rows."""
    (frame,) = message.frames
    batch = journal.checked_batch(journal.RESULTS, frame.payload, frame.checksum)
    divided: list[Frames] = []
    for part in (batch.slice(0, len(batch) // 2), batch.slice(len(batch) // 2)):
        payload, checksum = journal.frame_content(journal.RESULTS, part)
        own = {message.shard * 8 + row % 8 for row in part["row"].to_pylist()}
        admitted, resolved = ([place for place in places if place[0] in own] for places in (message.admitted, message.resolved))
        divided.append(replace(message, admitted=tuple(admitted), resolved=tuple(resolved), frames=(Frame("R", bytes(payload), checksum),)))
    return divided


@pytest.mark.slow
def test_a_shard_of_which_the_driver_had_a_part_is_not_run_again(bench: Bench):
    """Deterministic: its worker has sent the other part while there was no driver."""
    sections: dict[str, Any] = {"batch": {"deterministic": True}}
    run(bench, ModelWork(ModelPool()), "plain", **sections)
    lost, parted = LostDriver(1), list[Frames]()

    def watch(worker: str, message: FromWorker) -> bool:
        if isinstance(message, Frames) and not parted:
            parted.extend(halves(message))
            before.tell(worker, parted[0])
        return lost.watch(worker, message)

    before = ThreadFleet(engine, 1, watch)
    run(bench, ClusterWork(lambda: before, ClusterConfig(**SETTINGS)), "cluster", HostProcess(lost.stopped), **sections)
    before.end(True)
    held, done = HeldLeases(), next(message for message in lost.kept if isinstance(message, LeaseDone))
    held.begin(done.run)
    held.take(next(message for _, message in before.sent if isinstance(message, Lease) and message.lease == done.lease))
    held.relay(parted[0])
    held.acknowledge(Ack(done.run, 1))
    held.relay(parted[1])
    held.relay(done)
    assert 0 < sum(map(len, held.unfinished.values())) < 8

    fleet = ThreadFleet(engine, 1, hello=Hello("worker-1", "here", {"name": "worker-1"}, done.run, held.unfinished))
    for message in (*held.admissions, *held.outbox):
        fleet.tell("worker-1", message)
    again = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", **sections)
    fleet.end(True)
    assert again.complete
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    assert sorted(position for rows in given(fleet).values() for position in rows) == list(range(8, again.of))
    assert not any("again" in line for line in read_lines(RunPaths(bench.root / "cluster").workers))
