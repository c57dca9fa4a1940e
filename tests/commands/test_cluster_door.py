"""What is wrong with a worker at the door is said on both sides, one line a difference. Workers are threads here; see ThreadFleet."""

import logging
import shutil
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.jobs.worker.run_work import RunWork
from mlx_bulk.runner.cluster.description import RunDescription
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import Hello, RunOffer, RunStopped, StopRun
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.pipeline.model_work import OpenRun

from ..jobs.support.bench import Bench, Record
from ..jobs.support.cluster_runs import SETTINGS, engine, run
from ..runner.support.thread_fleet import ThreadFleet

ROWS: list[Record] = [{"q": "word"}] * 8
OTHERS = {"device": "metal", "BLAS": "another", "mlx": "0.1", "mlx-lm": "0.2", "kernels": "none", "threads": 77, "model.dequantized": True}


class OtherMachine(ThreadFleet):
    """A fleet whose driver has another machine: an identity with ``others``."""

    def __init__(self, others: dict[str, Any]):
        self._others = others
        super().__init__(engine, 1)

    def send(self, worker: str, message: Any) -> None:
        if isinstance(message, RunOffer):
            described = RunDescription.of_offer(message)
            doctored = replace(described, identity=described.identity | self._others)
            message = RunOffer(message.run, doctored.offer().description)
        super().send(worker, message)


def refused(bench: Bench, others: dict[str, Any]) -> None:
    fleet = OtherMachine(others)
    try:
        work = ClusterWork(lambda: fleet, ClusterConfig(workers=1))
        with pytest.raises(ModelError, match="no worker is left that can do the run"):
            run(bench, work, "cluster", rows=ROWS, batch={"deterministic": True})
    finally:
        fleet.end(True)


def test_each_difference_of_a_deterministic_run_is_named(bench: Bench, caplog: pytest.LogCaptureFixture):
    refused(bench, OTHERS)
    (line,) = [each for each in caplog.messages if "would give other results" in each]
    named = [each.strip() for each in line.splitlines()[1:]]
    assert [each.partition(": the run has ")[0] for each in named] == [*OTHERS]
    assert named[0] == "device: the run has 'metal', this worker 'cpu'"


@pytest.mark.parametrize("key", ["model.weights", "model.tokenizer", "prompt.chat_template"])
def test_other_files_are_named(bench: Bench, caplog: pytest.LogCaptureFixture, key: str):
    refused(bench, {key: "sha256 other"})
    assert f"would give other results: {key}: the run has 'sha256 other', this worker " in caplog.text


def test_another_version_of_mlx_bulk_is_refused_and_told_so(bench: Bench, caplog: pytest.LogCaptureFixture):
    fleet = ThreadFleet(engine, 2, hello=Hello("worker-1", "there", {"name": "old", "mlx-bulk": "0.0.1"}))
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", rows=ROWS)
    fleet.end(True)
    assert over.complete
    assert "worker-1 is not used: it has mlx-bulk 0.0.1, the run " in caplog.text
    ((worker, told),) = [(worker, message) for worker, message in fleet.sent if isinstance(message, StopRun) and message.reason]
    assert worker == "worker-1"
    assert told.reason.startswith("it has mlx-bulk 0.0.1, the run ")
    assert not [message for worker, message in fleet.sent if worker == "worker-1" and isinstance(message, RunOffer)]


def test_a_worker_says_why_it_is_not_used(caplog: pytest.LogCaptureFixture):
    told: list[Any] = []
    work = RunWork(lambda suspects, inbox: pytest.fail("no engine is needed"), SimpleQueue(), told.append)
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        work.stop(StopRun("a" * 64, "it has mlx-bulk 0.0.1, the run 0.1.0"))
    assert caplog.messages == ["the driver does not use this worker: it has mlx-bulk 0.0.1, the run 0.1.0"]
    assert told == [RunStopped("a" * 64)]


def test_another_version_of_mlx_is_said_once(bench: Bench, caplog: pytest.LogCaptureFixture):
    fleet = ThreadFleet(engine, 1, hello=Hello("worker-1", "there", {"mlx": "0.0.1"}))
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=1)), "cluster", rows=ROWS)
    fleet.end(True)
    assert over.complete
    assert [each for each in caplog.messages if each.startswith("worker-1 has mlx 0.0.1, this machine ")]


def test_files_that_change_once_the_run_knows_them_are_refused(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A worker reads the changed tokenizer; the run's records are bound to the one before."""
    made, model = RunDescription.of, shutil.copytree(bench.model, bench.root / "model of its own")

    def changed_before(open_run: OpenRun) -> RunDescription:
        with (model / "tokenizer.json").open("a") as file:
            file.write("\n")
        return made(open_run)

    monkeypatch.setattr(RunDescription, "of", changed_before)
    fleet = ThreadFleet(engine, 1)
    with pytest.raises(ModelError, match="no worker is left that can do the run"):
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=1)), "cluster", rows=ROWS, model={"path": str(model)})
    fleet.end(True)
    assert "would give other results: model.tokenizer: the run has " in caplog.text
