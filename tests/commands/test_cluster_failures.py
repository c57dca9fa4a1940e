"""A run over workers goes on when one of them fails, and gives up no more rows than those that end their workers."""

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import Begun, Frame, Frames, FromWorker, Lease, LeaseDone, RunFailed, StopRun
from mlx_bulk.runner.cluster.roster import NoWorkers
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.results import read_results

from ..jobs.support.bench import Bench, Record, table_of
from ..jobs.support.cluster_runs import SETTINGS, engine, records, run
from ..runner.support.thread_fleet import PipeEnd, ThreadFleet
from .test_cluster_faults import EMBEDDED, SCORED, start
from .test_cluster_run import lacking

ROWS: list[Record] = [{"q": "word " * (1 + row % 7)} for row in range(16)]


class Poisoned:
    """Workers of which each ends as it begins a lease with the row at ``position``; another takes its place.

    before: returns what such a worker sends first.
    """

    def __init__(self, position: int, workers: int = 1, before: Callable[[Lease], list[FromWorker]] = lambda lease: []):
        self._position, self._before, self.deaths = position, before, 0
        self.fleet = ThreadFleet(self._serve, workers)

    def _serve(self, end: PipeEnd) -> None:
        inner = PipeEnd(end.send)
        threading.Thread(target=engine, args=(inner,), daemon=True).start()
        try:
            while True:
                message = end.receive(60)
                if isinstance(message, Lease) and self._position in [row.position for row in pickle.loads(message.rows)]:
                    self._die(end, message)
                    break
                inner.put(message)
        except EOFError:
            pass
        inner.put(None)

    def _die(self, end: PipeEnd, lease: Lease) -> None:
        end.send(Begun(lease.run, lease.lease))
        for message in self._before(lease):
            end.send(message)
        self.deaths += 1
        self.fleet.start_worker()
        self.fleet.kill(threading.current_thread().name)


@pytest.mark.slow
def test_a_row_with_some_samples_done_that_ends_its_workers_is_given_up_alone(bench: Bench):
    sampling = {"n": 3, "max_tokens": 4, "temperature": 1.0}
    run(bench, ModelWork(ModelPool()), "plain", rows=ROWS, sampling=sampling)
    (batch,) = [each for each in read_results(bench.root / "plain") if 5 in each["row"].to_pylist()]
    first = [row == 5 and sample == 0 for row, sample in zip(batch["row"].to_pylist(), batch["sample"].to_pylist(), strict=True)]
    frame = Frame("R", *journal.frame_content(journal.RESULTS, batch.filter(pa.array(first))))

    def one_sample(lease: Lease) -> list[FromWorker]:
        return [] if (5, 0) in lease.recorded else [Frames(lease.run, 1, lease.shard, ((5, 3),), ((5, 0),), (frame,))]

    workers = Poisoned(5, before=one_sample)
    over = run(bench, ClusterWork(lambda: workers.fleet, ClusterConfig(**SETTINGS)), "cluster", rows=ROWS, sampling=sampling)
    workers.fleet.end(True)
    assert (over.complete, over.rows, over.records, over.errors) == (True, 16, 16 * 3 - 2, 2)
    plain = [each for each in records(bench, "plain") if each[0] != 5 or each[1] == 0]
    assert records(bench, "cluster") == plain
    failures = table_of(bench.root / "cluster/errors").to_pylist()
    assert [(each["row"], each["sample"], each["stage"], each["error"]) for each in failures] == [
        (5, 1, "generate", "EngineAborted"),
        (5, 2, "generate", "EngineAborted"),
    ]
    assert "workers died while they had this row, the last ones with no other" in failures[0]["message"]


@pytest.mark.parametrize(
    ("sections", "stage"),
    [
        pytest.param({}, "generate", marks=pytest.mark.slow, id="generate"),
        pytest.param(SCORED, "score", id="score"),
        pytest.param(EMBEDDED, "score", marks=pytest.mark.slow, id="embed"),
    ],
)
def test_a_row_that_ends_its_workers_has_the_stage_of_a_plain_run(bench: Bench, sections: dict[str, Any], stage: str):
    workers = Poisoned(5)
    given: dict[str, Any] = {"rows": ROWS, "batch": {"rows": 4, "rows_per_shard": 8}, **sections}
    over = start(bench, ClusterWork(lambda: workers.fleet, ClusterConfig(**SETTINGS)), "cluster", Start(), **given)
    workers.fleet.end(True)
    (failure,) = table_of(bench.root / "cluster/errors").to_pylist()
    assert (over.complete, over.errors, failure["row"], failure["stage"], failure["error"]) == (True, 1, 5, stage, "EngineAborted")
    assert workers.deaths <= 3 + 4  # log2 of the rows of a shard, twice together, twice alone


def test_a_worker_that_fails_after_the_last_row_does_not_spoil_a_complete_run(bench: Bench):
    done = set[int]()

    def serve(end: PipeEnd) -> None:
        def tell(message: Any) -> None:
            end.send(message)
            if isinstance(message, Frames):
                done.update(position for position, _ in message.resolved)
            if isinstance(message, LeaseDone) and len(done) == len(ROWS):
                end.send(RunFailed(message.run, "ModelError", "the engine has gone mad"))

        inner = PipeEnd(tell)
        threading.Thread(target=engine, args=(inner,), daemon=True).start()
        try:
            while True:
                inner.put(end.receive(60))
        except EOFError:
            inner.put(None)

    fleet = ThreadFleet(serve, 1)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=1, lease_seconds=0.05)), "cluster", rows=ROWS)
    fleet.end(True)
    assert (over.complete, over.rows) == (True, 16)


def lacking_or_late(end: PipeEnd) -> None:
    """The first worker has no model. The second one comes later."""
    (lacking if threading.current_thread().name == "worker-1" else engine)(end)


def test_a_worker_without_the_model_does_not_end_a_run_that_others_may_join(bench: Bench, caplog: pytest.LogCaptureFixture):
    def watch(worker: str, message: FromWorker) -> bool:
        if isinstance(message, RunFailed):
            threading.Timer(0.3, fleet.start_worker).start()
        return True

    fleet = ThreadFleet(lacking_or_late, 1, watch)
    settings = ClusterConfig(listen="127.0.0.1:0", lease_seconds=0.05)
    over = run(bench, ClusterWork(lambda: fleet, settings), "cluster", rows=ROWS)
    fleet.end(True)
    assert over.complete
    assert "worker-1 is not used: it cannot go on: model.path: no folder ./m" in caplog.text


def test_a_run_that_others_may_join_ends_after_the_wait_and_says_who_was_refused(bench: Bench):
    fleet = ThreadFleet(lacking, 1)
    settings = ClusterConfig(listen="127.0.0.1:0", wait=0.2)
    with pytest.raises(NoWorkers, match=r"for 0\.2 s \(worker-1: model\.path: no folder \./m\); what was finished is safe"):
        run(bench, ClusterWork(lambda: fleet, settings), "cluster", rows=ROWS)
    fleet.end(True)


def test_a_run_for_its_own_workers_alone_ends_with_the_fault_of_the_first(bench: Bench):
    fleet = ThreadFleet(lacking, 2)
    with pytest.raises(ModelError, match=r"^worker-\d: model\.path: no folder \./m$"):
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=2)), "cluster", rows=ROWS)
    fleet.end(True)


def told_why(fleet: ThreadFleet) -> list[tuple[str, str]]:
    """The workers that are not used, and what each was told of it."""
    return [(worker, message.reason) for worker, message in fleet.sent if isinstance(message, StopRun) and message.reason]


def test_a_worker_whose_records_are_damaged_is_told_why_it_is_not_used(bench: Bench):
    speaks, dropped = threading.local(), threading.Event()

    def watch(worker: str, message: FromWorker) -> bool:
        speaks.worker = worker
        if told_why(fleet):
            dropped.set()
        return True

    def spoil(message: FromWorker) -> FromWorker:
        if speaks.worker == "worker-1" and isinstance(message, Frames) and message.frames:
            return replace(message, frames=(replace(message.frames[0], payload=b"x"),))
        return message

    def serve(end: PipeEnd) -> None:
        if threading.current_thread().name == "worker-2":
            dropped.wait(60)
        engine(end)

    fleet = ThreadFleet(serve, 2, watch, spoil)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", rows=ROWS)
    fleet.end(True)
    assert over.complete
    assert told_why(fleet) == [("worker-1", "it sent damaged records 3 times")]
