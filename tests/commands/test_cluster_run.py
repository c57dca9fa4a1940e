"""A run over workers writes what a run on one machine writes, whoever dies. Workers are threads here; see ThreadFleet."""

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import Frames, FromWorker, Ready, RunFailed, RunOffer, RunRefused, StopRun
from mlx_bulk.runner.core.errors import DataError, ModelError
from mlx_bulk.runner.core.host_process import HostProcess, Orders, Supervisor
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.store.results import read_results
from mlx_bulk.runner.worker.engine_service import serve_engine

from ..jobs.support.bench import Bench, Record
from ..jobs.support.cluster_runs import SETTINGS, engine, mortal_fleet, parts, records, run
from ..runner.support.thread_fleet import PipeEnd, StopEarly, ThreadFleet

DETERMINISTIC: dict[str, Any] = {"batch": {"deterministic": True}}


@pytest.mark.parametrize(
    ("workers", "sections"),
    [
        (1, {}),
        *(pytest.param(workers, DETERMINISTIC, marks=pytest.mark.slow) for workers in (1, 2, 3, 5)),
        pytest.param(1, {"sampling": {"n": 3, "max_tokens": 4}}, marks=pytest.mark.slow),
    ],
)
def test_workers_write_the_same_parts(bench: Bench, workers: int, sections: dict[str, Any]):
    plain = run(bench, ModelWork(ModelPool()), "plain", **sections)
    fleet = ThreadFleet(engine, workers)
    settings = ClusterConfig(workers=workers, min_workers=workers, lease_seconds=SETTINGS["lease_seconds"])
    over = run(bench, ClusterWork(lambda: fleet, settings), "cluster", **sections)
    fleet.end(True)
    assert (over.rows, over.records, over.errors, over.complete) == (plain.rows, plain.records, plain.errors, True)
    assert records(bench, "cluster") == records(bench, "plain")
    if sections.get("batch"):
        assert parts(bench.root / "cluster") == parts(bench.root / "plain")


def test_a_row_that_fails_is_in_the_errors(bench: Bench):
    rows: list[Record] = [{"q": "word " * (1 + row % 7)} for row in range(20)]
    rows[5] = {"q": None}
    plain = run(bench, ModelWork(ModelPool()), "plain", rows=rows)
    fleet = ThreadFleet(engine, 1)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", rows=rows)
    fleet.end(True)
    assert (over.rows, over.records, over.errors, over.complete) == (20, 19, 1, True)
    assert over.reasons == plain.reasons
    assert records(bench, "cluster") == records(bench, "plain")


def test_a_worker_that_dies_costs_nothing(bench: Bench):
    """The worker dies with a message on the way, and another one takes its place."""
    plain = run(bench, ModelWork(ModelPool()), "plain", batch={"deterministic": True})
    fleet, _ = mortal_fleet(1, nth=3)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", batch={"deterministic": True})
    fleet.end(True)
    assert over.complete
    assert (over.prompt_tokens, over.generated_tokens) == (plain.prompt_tokens, plain.generated_tokens)
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")


def with_another_letter(payload: bytes) -> bytes:
    """Changes a bit of a text in a frame: what it holds still is Arrow's, and a record."""
    held = pa.ipc.open_stream(payload).read_all()
    text = held.column("prompt")[0].as_py()
    letter = payload.index(text.encode())
    changed = payload[:letter] + bytes([payload[letter] ^ 1]) + payload[letter + 1 :]
    assert pa.ipc.open_stream(changed).read_all().schema == held.schema
    return changed


def test_damaged_frames_are_done_again(bench: Bench, caplog: pytest.LogCaptureFixture):
    frames = count(1)

    def spoil(message: FromWorker) -> FromWorker:
        if isinstance(message, Frames) and next(frames) == 2:
            (frame, *rest) = message.frames
            return replace(message, frames=(replace(frame, payload=with_another_letter(frame.payload)), *rest))
        return message

    fleet = ThreadFleet(engine, 1, spoil=spoil)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster")
    fleet.end(True)
    assert "sent records that are damaged (the frame's checksum is wrong); they are done again" in caplog.text
    run(bench, ModelWork(ModelPool()), "plain")
    assert over.complete
    assert records(bench, "cluster") == records(bench, "plain")


def test_a_driver_that_is_started_again_goes_on(bench: Bench):
    """The first session is stopped after some rows. The second one has the rest done, each row once."""
    early = StopEarly()
    fleet = ThreadFleet(engine, 1, early.watch)
    work = ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS))
    first = run(bench, work, "cluster", HostProcess(stopped=early.stopped))
    assert not first.complete
    assert first.rows
    early.go_on()
    second = run(bench, work, "cluster")
    fleet.end(True)
    run(bench, ModelWork(ModelPool()), "plain")
    assert second.complete
    assert records(bench, "cluster") == records(bench, "plain")


def test_a_worker_with_other_results_is_refused(bench: Bench, caplog: pytest.LogCaptureFixture):
    fleet = ThreadFleet(refusing, 1)
    with pytest.raises(ModelError, match="no worker is left that can do the run"):
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=1)), "cluster")
    fleet.end(True)
    assert "worker-1 is not used: it would give other results: model: the run has 'a', this worker 'b'" in caplog.text


def refusing(end: PipeEnd) -> None:
    """A worker whose model is another one."""
    while True:
        try:
            message = end.receive(1.0)
        except EOFError:
            return
        if isinstance(message, RunOffer):
            end.send(RunRefused(message.run, ("model: the run has 'a', this worker 'b'",)))


def test_a_worker_without_the_model_is_named(bench: Bench):
    fleet = ThreadFleet(lacking, 1)
    with pytest.raises(ModelError, match=r"^worker-1: model\.path: no folder \./m$"):
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=1)), "cluster")
    fleet.end(True)


def lacking(end: PipeEnd) -> None:
    """A worker that does not find the model."""
    while True:
        try:
            message = end.receive(1.0)
        except EOFError:
            return
        if isinstance(message, RunOffer):
            end.send(RunFailed(message.run, "ModelError", "model.path: no folder ./m"))


def test_a_worker_at_work_is_said_once(bench: Bench, caplog: pytest.LogCaptureFixture):
    fleet = ThreadFleet(engine, 1)
    with caplog.at_level(logging.INFO, "mlx_bulk"):
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster")
    fleet.end(True)
    assert [line for line in caplog.messages if line.startswith("worker-")] == ["worker-1 works on the run: float32 on cpu"]


def test_an_error_of_the_worker_ends_the_run_as_its_own_would(bench: Bench):
    rows: list[Record] = [{"q": "word"}] * 12 + [{"q": None}]
    fleet = ThreadFleet(engine, 1)
    with pytest.raises(DataError, match="on_error: fail, and row 12 failed"):
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", rows=rows, on_error="fail")
    fleet.end(True)


def test_a_run_that_is_ended_and_offered_again_while_it_is_loaded_is_ready_once(bench: Bench):
    readies: list[FromWorker] = []

    def watch(worker: str, message: FromWorker) -> bool:
        readies.extend([message] if isinstance(message, Ready) else [])
        return True

    fleet = ThreadFleet(lambda end: serve_engine(end, KINDS, HostProcess(supervisor=OffersAgain(end, lambda: fleet))), 1, watch)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster")
    fleet.end(True)
    assert (over.rows, over.complete, len(readies)) == (40, True, 1)


class OffersAgain(Supervisor):
    """Is asked while a run is loaded, and has the run ended and offered again then, once."""

    def __init__(self, end: PipeEnd, fleet: Callable[[], ThreadFleet]):
        self._end, self._fleet, self._done = end, fleet, False

    def orders(self, run: Path) -> Orders:
        if not self._done:
            self._done = True
            offer = next(message for _, message in self._fleet().sent if isinstance(message, RunOffer))
            for message in (StopRun(offer.run), offer, StopRun("another")):
                self._end.put(message)
            self._end.wait_until_read()
        return super().orders(run)


@pytest.mark.slow
def test_rollouts_come_in_whole_groups_and_name_their_policy(bench: Bench):
    sections: dict[str, Any] = {
        "job": "rollout",
        "sampling": {"n": 3, "max_tokens": 4, "temperature": 1.0},
        "rounds": 2,
        "rewards": [{"fn": "length"}],
    }
    run(bench, ModelWork(ModelPool()), "plain", **sections)
    fleet = ThreadFleet(engine, 1)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", **sections)
    fleet.end(True)
    assert (over.rows, over.records) == (80, 240)
    plain, cluster = (list(read_results(bench.root / folder)) for folder in ("plain", "cluster"))
    names = ["row", "round", "sample", "completion", "reward", "advantage", "policy_sha"]
    assert [batch.select(names).to_pylist() for batch in cluster] == [batch.select(names).to_pylist() for batch in plain]
    assert {path.name for path in (bench.root / "cluster/policies").iterdir()} == {
        path.name for path in (bench.root / "plain/policies").iterdir()
    }
