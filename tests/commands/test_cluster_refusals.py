"""Workers that are not used, and what a driver still has to do with them. Workers are threads here; see ThreadFleet."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.lease_policies import LeasePolicies
from mlx_bulk.runner.cluster.messages import FromWorker, Hello, PolicyRefused, Ready, RunOffer, RunRefused, StopRun, ToWorker
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.parcels.file_desk import FileDesk

from ..jobs.support.bench import Bench
from ..runner.support.thread_fleet import PipeEnd, StopEarly, ThreadFleet
from .test_cluster_faults import patient
from .test_cluster_run import SETTINGS, engine, run

pytestmark = pytest.mark.slow

Answer = Callable[[str], FromWorker]


class OneRefused(ThreadFleet):
    """Two workers. The first one answers each offer, and may connect again once it is refused; the second one waits until it is."""

    def __init__(self, answer: Answer, connects_again: bool):
        self._answer, self._connects_again = answer, connects_again
        self._refused = threading.Event()
        super().__init__(self._work, 2)

    def send(self, worker: str, message: ToWorker) -> None:
        super().send(worker, message)
        if isinstance(message, StopRun) and message.reason:
            if self._connects_again:
                self._connects_again = False
                self.reconnect(worker)
            else:
                self._refused.set()

    def to_first(self, kind: type) -> list[Any]:
        """What the first worker was sent of a kind."""
        return [message for worker, message in self.sent if worker == "worker-1" and isinstance(message, kind)]

    def _work(self, end: PipeEnd) -> None:
        if threading.current_thread().name == "worker-2":
            assert self._refused.wait(60)
            engine(end)
            return
        try:
            while True:
                if isinstance(message := end.receive(1.0), RunOffer):
                    end.send(self._answer(message.run))
        except EOFError:
            return


def complete(bench: Bench, fleet: ThreadFleet) -> bool:
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", patient())
    fleet.end(True)
    return over.complete


def test_a_refused_worker_that_connects_again_is_told_so_and_loads_nothing(bench: Bench):
    fleet = OneRefused(lambda digest: RunRefused(digest, ("model: other weights",)), connects_again=True)
    assert complete(bench, fleet)
    assert len(fleet.to_first(RunOffer)) == 1
    reason = "it would give other results: model: other weights"
    assert [message.reason for message in fleet.to_first(StopRun) if message.reason] == [reason, reason]


@pytest.mark.parametrize("facts", ["{", "[]", '{"batch": 3}', '{"batch": {"rows": "4"}}', '{"batch": {"rows": 4}, "halved": -1}'])
def test_a_worker_that_tells_no_facts_of_its_model_is_not_used(bench: Bench, facts: str):
    fleet = OneRefused(lambda digest: Ready(digest, facts, 100), connects_again=False)
    assert complete(bench, fleet)
    (stop,) = [message for message in fleet.to_first(StopRun) if message.reason]
    assert stop.reason.startswith("it tells of its model what cannot be read (")


def test_what_a_refused_worker_wanted_is_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    forgotten = list[str]()
    monkeypatch.setattr(FileDesk, "forget", lambda files, worker: forgotten.append(worker))
    assert complete(bench, OneRefused(lambda digest: RunRefused(digest, ("model: other weights",)), connects_again=False))
    assert forgotten == ["worker-1"]


def test_rows_that_a_worker_had_come_back_when_it_refuses_the_policy_that_they_had(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Another worker has refused it before: the policy of their shard is another one meanwhile."""
    early = StopEarly()
    first = ThreadFleet(engine, 1, early.watch)
    assert not run(bench, ClusterWork(lambda: first, ClusterConfig(**SETTINGS)), "cluster", HostProcess(early.stopped)).complete
    first.end(True)
    (digest,) = {message.run for _, message in first.sent if isinstance(message, RunOffer)}
    policy: list[str | None] = ["step_1"]
    monkeypatch.setattr(LeasePolicies, "of", lambda policies, shard: policy[0])
    monkeypatch.setattr(LeasePolicies, "refuse", lambda policies, name, reason: True)

    def serve(end: PipeEnd) -> None:
        while not isinstance(offer := end.receive(60), RunOffer):
            pass
        policy[0] = None
        end.put(offer)
        end.send(PolicyRefused(digest, "step_1", "it is damaged"))
        engine(end)

    fleet = ThreadFleet(serve, 1, hello=Hello("worker-1", "here", {}, digest, {"before-1": list(range(24, 32))}))
    assert complete(bench, fleet)
