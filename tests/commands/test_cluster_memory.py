"""Workers with unlike memory: what is too large for a small one goes to a larger one; what is too large for all is told."""

import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.checks.row_limits import LackOfRoom
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import FromWorker, NoRoom, Ready, StopRun
from mlx_bulk.runner.core.errors import DataError, OutOfRoom
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.loading import LoadedModels
from mlx_bulk.runner.pipeline.model_work import ModelWork

from ..jobs.support.bench import Bench, Record, table_of
from ..jobs.support.cluster_runs import SETTINGS, engine, parts, records, run
from ..runner.support.small_memory import MESSAGE
from ..runner.support.thread_fleet import ThreadFleet

ROWS: list[Record] = [{"q": "word " * (1 + row % 7)} for row in range(16)]
LONG: list[Record] = [*ROWS[:3], {"q": "word " * 40}, *ROWS[4:]]
SMALL, LARGE = 30, 1000  # tokens of the longest row that a worker has room for
FIXED: dict[str, Any] = {"batch": {"deterministic": True, "rows": 4, "rows_per_shard": 4}}


class Unlike:
    """Workers with unlike memory: worker-N has room for rows of ``rooms[N - 1]`` tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rooms: int):
        def lacking_room(models: LoadedModels) -> Any:
            room = rooms[int(threading.current_thread().name.removeprefix("worker-")) - 1]

            def checked(request: Any) -> str | None:
                if request.reach <= room:
                    return None
                why = f"{request.reach} tokens, and room for {room}"
                if models.setup.static:
                    raise OutOfRoom(f"row {request.row}: {why}")
                return LackOfRoom(why)

            return checked

        monkeypatch.setattr(LoadedModels, "row_check", lacking_room)
        self._rooms, self._speaks = rooms, threading.local()
        self.given_up: list[int] = []  # the worker, for each lease that it had no room for
        self.fleet = ThreadFleet(engine, len(rooms), self._watch, self._spoil)

    @property
    def refused(self) -> list[str]:
        """The workers that are not used."""
        return [worker for worker, message in self.fleet.sent if isinstance(message, StopRun) and message.reason]

    def _watch(self, worker: str, message: FromWorker) -> bool:
        self._speaks.worker = int(worker.removeprefix("worker-"))
        if isinstance(message, NoRoom):
            self.given_up.append(self._speaks.worker)
        return True

    def _spoil(self, message: FromWorker) -> FromWorker:
        return replace(message, longest=self._rooms[self._speaks.worker - 1]) if isinstance(message, Ready) else message


def test_a_row_too_long_for_a_small_worker_is_done_by_a_large_one(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    run(bench, ModelWork(ModelPool()), "plain", rows=LONG)
    unlike = Unlike(monkeypatch, SMALL, LARGE)
    settings = ClusterConfig(**SETTINGS, min_workers=2)
    over = run(bench, ClusterWork(lambda: unlike.fleet, settings), "cluster", rows=LONG, on_error="fail")
    unlike.fleet.end(True)
    assert (over.complete, over.errors) == (True, 0)
    assert records(bench, "cluster") == records(bench, "plain")


def test_a_row_too_long_for_the_largest_worker_is_set_aside(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    unlike = Unlike(monkeypatch, SMALL, SMALL + 5)
    settings = ClusterConfig(**SETTINGS, min_workers=2)
    over = run(bench, ClusterWork(lambda: unlike.fleet, settings), "cluster", rows=LONG)
    unlike.fleet.end(True)
    assert (over.complete, over.records, over.errors) == (True, 15, 1)
    (failure,) = table_of(bench.root / "cluster/errors").to_pylist()
    assert (failure["row"], failure["stage"], failure["error"]) == (3, "too_long", "RowError")
    assert failure["message"].partition(" (/")[0] == "49 tokens, and room for 35 (on the worker with the most room; 2 have joined)"
    assert failure["message"].count("line 4") == 1


def test_a_row_too_long_for_all_ends_a_run_that_may_not_fail(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    unlike = Unlike(monkeypatch, SMALL)
    with pytest.raises(DataError, match=r"on_error: fail, and row 3 failed at too_long: 49 tokens, and room for 30 \("):
        run(bench, ClusterWork(lambda: unlike.fleet, ClusterConfig(workers=1)), "cluster", rows=LONG, on_error="fail")
    unlike.fleet.end(True)


def test_a_shard_too_large_for_a_small_worker_is_done_by_a_large_one(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Deterministic: the shard stays whole, and the small worker goes on with others."""
    run(bench, ModelWork(ModelPool()), "plain", rows=LONG, **FIXED)
    unlike = Unlike(monkeypatch, SMALL, LARGE)
    over = run(bench, ClusterWork(lambda: unlike.fleet, ClusterConfig(**SETTINGS, min_workers=2)), "cluster", rows=LONG, **FIXED)
    unlike.fleet.end(True)
    assert (over.complete, over.rows, over.errors) == (True, 16, 0)
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    assert unlike.refused == []
    assert unlike.given_up == [1]  # it gets the first shard, which has the long row


def test_a_small_worker_does_all_shards_but_the_one_that_nobody_has_room_for(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """What is left is done by a larger worker in another session."""
    run(bench, ModelWork(ModelPool()), "plain", rows=LONG, **FIXED)
    with monkeypatch.context() as patched:
        unlike = Unlike(patched, SMALL, SMALL + 5)
        with pytest.raises(
            OutOfRoom, match=r"^shard 0: no worker that has joined has room for it.*worker-\d: row 3: 49 tokens, and room for 3"
        ):
            run(bench, ClusterWork(lambda: unlike.fleet, ClusterConfig(**SETTINGS, min_workers=2)), "cluster", rows=LONG, **FIXED)
        unlike.fleet.end(True)
    assert sorted(unlike.given_up) == [1, 2]
    assert len(parts(bench.root / "cluster")) == 3
    assert run(bench, ModelWork(ModelPool()), "cluster", rows=LONG, **FIXED).complete
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_shard_that_takes_the_memory_of_a_worker_goes_to_another_one(bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int):
    """Its engine fails twice within a step of the same batch. It goes on with the next shard."""
    run(bench, ModelWork(ModelPool()), "plain", rows=ROWS, **FIXED)
    short, turn = count(1), Engine._turn  # pyright: ignore[reportPrivateUsage]

    def fails(self: Engine, queue: Any) -> bool:
        if threading.current_thread().name == "worker-1" and self._batch.busy and next(short) <= 2 * times:  # pyright: ignore[reportPrivateUsage]
            raise RuntimeError(MESSAGE)
        return turn(self, queue)

    monkeypatch.setattr(Engine, "_turn", fails)
    unlike = Unlike(monkeypatch, LARGE, LARGE)
    over = run(bench, ClusterWork(lambda: unlike.fleet, ClusterConfig(**SETTINGS, min_workers=2)), "cluster", rows=ROWS, **FIXED)
    unlike.fleet.end(True)
    assert (over.complete, over.rows, over.errors) == (True, 16, 0)
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    assert (unlike.refused, unlike.given_up) == ([], [1] * times)
