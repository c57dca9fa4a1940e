"""Rollouts over workers with a policy that changes: each shard has one, whoever dies, and what cannot be loaded is refused.

Workers are threads here; see ThreadFleet.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.cluster.messages import Frames, FromWorker, Lease, NewestPolicy, PolicyRefused
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.parcels.file_messages import Piece, PieceWanted
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.policies.policy_source import DONE

from ..jobs.support.bench import Bench
from ..jobs.support.cluster_rollouts import ROWS, events, over, records, roll, step, versions
from ..jobs.support.cluster_runs import engine
from ..jobs.support.rollout_runs import groups
from ..jobs.verify.test_verify import verify
from ..runner.support.thread_fleet import StopEarly, ThreadFleet


def at_frames(**does: Callable[[str], bool]) -> Callable[[str, FromWorker], bool]:
    """A watch that calls ``frame_N`` with the worker's name at the N-th frames of all."""
    frames = count(1)

    def watch(worker: str, message: FromWorker) -> bool:
        return does.get(f"frame_{next(frames)}", lambda worker: True)(worker) if isinstance(message, Frames) else True

    return watch


@pytest.mark.slow
@pytest.mark.parametrize("update", ["shard", "round"])
def test_each_shard_has_one_policy_whoever_dies(bench: Bench, update: str):
    def kill(worker: str) -> bool:
        fleet.kill(worker)
        fleet.start_worker()
        return False

    def train(number: int) -> Callable[[str], bool]:
        return lambda worker: bool(step(bench, number))

    fleet = ThreadFleet(engine, 3, at_frames(frame_3=train(5), frame_5=kill, frame_8=train(9), frame_10=kill))
    policy = {"watch": str(bench.root / "adapters"), "update": update}
    done = roll(bench, over(fleet), rounds=3, policy=policy)
    fleet.end(True)
    found = records(bench)
    assert (done.complete, done.rows, len(found)) == (True, 72, 144)
    assert len(groups(found)) == 72
    by_shard = versions(found)
    assert all(len(each) == 1 for each in by_shard.values())
    if update == "round":
        assert all(len(set().union(*(each for (around, _), each in by_shard.items() if around == number))) == 1 for number in range(3))
    assert 9 in set().union(*by_shard.values())
    assert verify(bench.root / "cluster").exit_code == 0


def test_a_policy_goes_to_the_worker_in_pieces_and_samples_as_in_a_plain_run(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    step(bench, 3)
    fleet = ThreadFleet(engine, 1)
    monkeypatch.setattr("mlx_bulk.runner.parcels.parcels.PIECE_BYTES", 4096)
    roll(bench, over(fleet), rows=ROWS[:8])
    fleet.end(True)
    roll(bench, ModelWork(ModelPool()), output="plain", rows=ROWS[:8])
    names = ["row", "sample", "completion", "policy_version", "policy_sha"]
    found, plain = ([{name: each[name] for name in names} for each in records(bench, output)] for output in ("cluster", "plain"))
    assert found == plain
    assert versions(records(bench)) == {(0, 0): {3}, (0, 1): {3}}
    pieces = [message for _, message in fleet.sent if isinstance(message, Piece)]
    assert len(pieces) > 3
    assert [piece.offset for piece in pieces] == [4096 * number for number in range(len(pieces))]
    assert events(bench) == [("taken", 3)]


@pytest.mark.slow
def test_a_damaged_piece_is_asked_for_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    step(bench, 3)
    asked: list[int] = []

    def watch(worker: str, message: FromWorker) -> bool:
        if isinstance(message, PieceWanted):
            asked.append(message.offset)
        return True

    fleet = ThreadFleet(engine, 1, watch)
    send, pieces = fleet.send, count(1)

    def spoil(worker: str, message: Any) -> None:
        wrong = isinstance(message, Piece) and next(pieces) == 2
        send(worker, replace(message, content=b"x" + message.content[1:]) if wrong else message)

    monkeypatch.setattr(fleet, "send", spoil)
    monkeypatch.setattr("mlx_bulk.runner.parcels.parcels.PIECE_BYTES", 4096)
    done = roll(bench, over(fleet), rows=ROWS[:4])
    fleet.end(True)
    assert done.complete
    assert asked[:4] == [0, 4096, 4096, 8192]
    assert versions(records(bench)) == {(0, 0): {3}}


def test_a_policy_that_workers_cannot_load_is_refused_and_the_next_older_one_samples(bench: Bench, caplog: pytest.LogCaptureFixture):
    step(bench, 2)
    broken = step(bench, 3) / "adapters.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    fleet = ThreadFleet(engine, 2)
    done = roll(bench, over(fleet))
    fleet.end(True)
    assert (done.complete, done.rows, done.errors, done.refused) == (True, 24, 0, 1)
    assert set().union(*versions(records(bench)).values()) == {2}
    assert events(bench) == [("refused", 3), ("taken", 2)]
    assert [line for line in caplog.messages if "is refused" in line] == [
        line for line in caplog.messages if line.startswith(f"{bench.root / 'adapters' / 'step_000003'}: is refused: ")
    ]
    assert sorted(path.name.split("-")[0] for path in (bench.root / "cluster" / "policies").glob("*-*")) == ["0", "2"]
    assert verify(bench.root / "cluster").exit_code == 0


@pytest.mark.slow
def test_one_worker_that_cannot_load_what_others_can_is_not_used(bench: Bench, caplog: pytest.LogCaptureFixture):
    step(bench, 2)
    loaded_by: list[str] = []

    def watch(worker: str, message: FromWorker) -> bool:
        if isinstance(message, Frames) and not loaded_by:
            loaded_by.append(worker)
            other = next(name for name in fleet.workers() if name != worker)
            lease = next(each for _, each in fleet.sent if isinstance(each, Lease))
            assert lease.policy is not None
            fleet.tell(other, PolicyRefused(lease.run, lease.policy, "no room"))
        return True

    fleet = ThreadFleet(engine, 2, watch)
    done = roll(bench, over(fleet))
    fleet.end(True)
    assert done.complete
    assert set().union(*versions(records(bench)).values()) == {2}
    assert "is not used: it cannot load policy 2-" in caplog.text
    assert done.refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("update", ["shard", "round"])
def test_a_driver_that_is_started_again_goes_on_with_the_policy_of_each_open_shard(bench: Bench, update: str):
    policy = {"watch": str(bench.root / "adapters"), "update": update}
    step(bench, 2)
    early = StopEarly(3)
    fleet = ThreadFleet(engine, 2, early.watch)
    work = over(fleet)
    assert not roll(bench, work, HostProcess(early.stopped), policy=policy).complete
    begun = {line["unit"] for line in read_lines(bench.root / "cluster" / "policies" / "events.jsonl") if line["event"] == "begun"}
    step(bench, 7)
    early.go_on()
    assert roll(bench, work, policy=policy, rounds=2).complete
    fleet.end(True)
    by_shard = versions(records(bench))
    first = {(0, shard) for shard in range(6) if shard in begun or update == "round"}
    assert first
    assert {place: each for place, each in by_shard.items() if place in first} == {place: {2} for place in first}
    assert {place: each for place, each in by_shard.items() if place not in first} == {place: {7} for place in by_shard.keys() - first}
    assert verify(bench.root / "cluster").exit_code == 0


@pytest.mark.slow
def test_workers_hear_of_the_newest_step_and_mark_what_is_stale(bench: Bench):
    def train(worker: str) -> bool:
        return bool(step(bench, 40))

    fleet = ThreadFleet(engine, 1, at_frames(frame_1=train))
    policy = {"watch": str(bench.root / "adapters"), "update": "round", "max_staleness": 10}
    done = roll(bench, over(fleet, lease_seconds=0.001), rows=ROWS * 3, policy=policy, rounds=2)
    fleet.end(True)
    assert done.complete
    assert {message.version for _, message in fleet.sent if isinstance(message, NewestPolicy)} == {0, 40}
    found = records(bench)
    assert {each["policy_version"] for each in found if each["round"] == 0} == {0}
    assert {each["staleness"] for each in found if each["round"] == 1} == {0}
    assert {each["staleness"] for each in found} <= {0, 40}
    assert all(each["stale"] == (each["staleness"] == 40) for each in found)


def full_step(bench: Bench, number: int) -> Path:
    folder = bench.root / "adapters" / f"step_{number:06d}"
    shutil.copytree(bench.model, folder)
    (folder / DONE).touch()
    return folder


@pytest.mark.slow
def test_full_weights_are_loaded_from_a_path_that_the_worker_sees(bench: Bench):
    full_step(bench, 4)
    fleet = ThreadFleet(engine, 2)
    done = roll(bench, over(fleet))
    fleet.end(True)
    assert (done.complete, done.refused) == (True, 0)
    assert set().union(*versions(records(bench)).values()) == {4}
    assert sum(len(message.content) for _, message in fleet.sent if isinstance(message, Piece)) < 10_000
    assert verify(bench.root / "cluster").exit_code == 0


@pytest.mark.slow
def test_full_weights_that_a_worker_does_not_see_are_refused(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    step(bench, 2)
    folder = full_step(bench, 4)
    fleet = ThreadFleet(engine, 2)
    send = fleet.send

    def blind(worker: str, message: Any) -> None:
        if isinstance(message, Lease) and folder.exists():
            folder.rename(bench.root / "of-the-driver-alone")
        send(worker, message)

    monkeypatch.setattr(fleet, "send", blind)
    done = roll(bench, over(fleet))
    fleet.end(True)
    assert (done.complete, done.refused) == (True, 1)
    assert set().union(*versions(records(bench)).values()) == {2}
    said = next(line for line in caplog.messages if "is refused" in line)
    assert said.startswith(f"{folder}: is refused: full weights are not sent to workers, and one of them does not see {folder}; ")


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_of_a_policy_costs_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    step(bench, 3)
    asked: list[tuple[str, int]] = []

    def watch(worker: str, message: FromWorker) -> bool:
        if isinstance(message, PieceWanted):
            asked.append((worker, message.offset))
            if asked[-1] == ("worker-1", 8192):
                fleet.kill(worker)
                fleet.start_worker()
                return False
        return True

    fleet = ThreadFleet(engine, 1, watch)
    monkeypatch.setattr("mlx_bulk.runner.parcels.parcels.PIECE_BYTES", 4096)
    done = roll(bench, over(fleet), rows=ROWS[:4])
    fleet.end(True)
    assert (done.complete, done.refused) == (True, 0)
    assert versions(records(bench)) == {(0, 0): {3}}
    assert [offset for worker, offset in asked if worker == "worker-2"][:3] == [0, 4096, 8192]


@pytest.mark.slow
def test_a_round_that_a_plain_run_began_ends_under_its_policy(bench: Bench):
    how: dict[str, Any] = {"policy": {"watch": str(bench.root / "adapters"), "update": "round"}}
    step(bench, 3)
    assert roll(bench, ModelWork(ModelPool()), **how).complete
    (bench.root / "cluster" / "results" / "part-00000004.arrow").unlink()  # the round is open again
    step(bench, 9)
    fleet = ThreadFleet(engine, 2)
    assert roll(bench, over(fleet), **how, rounds=2).complete
    fleet.end(True)
    assert {(around, *each) for (around, _), each in versions(records(bench)).items()} == {(0, 3), (1, 9)}
