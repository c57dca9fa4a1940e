"""Workers that are not used, and what a driver still has to do with them. Workers are threads here; see ThreadFleet."""

import logging
import pickle
import threading
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy
import pyarrow as pa
import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.lease_policies import LeasePolicies
from mlx_bulk.runner.cluster.messages import (
    Begun,
    Figures,
    Frame,
    Frames,
    FromWorker,
    Hello,
    Lease,
    LeaseDone,
    PolicyRefused,
    Ready,
    RunOffer,
    RunRefused,
    StopRun,
    ToWorker,
    Unfit,
)
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.parcels.file_desk import FileDesk
from mlx_bulk.runner.parcels.file_messages import PicturePart, PictureWanted
from mlx_bulk.runner.parcels.picture_desk import file_name
from mlx_bulk.runner.store import journal

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


NO_FACTS = ["{", "[]", '{"batch": 3}', '{"batch": {"rows": "4"}}', '{"batch": {"rows": 4}, "halved": -1}', "[" * 200_000, "9" * 5000]
STRANGE: list[Callable[[str], FromWorker]] = [
    *(partial(Ready, facts=facts, longest=100) for facts in NO_FACTS),
    partial(Figures, counts={"steps": 10**400}),
    partial(Figures, counts={"steps": -1}),
    partial(Unfit, position=-3, reason="it is long"),
    partial(Unfit, position=10**30, reason="it is long"),
]


@pytest.mark.parametrize("answer", STRANGE)
def test_a_worker_that_sends_what_cannot_be_right_is_not_used_and_the_run_goes_on(bench: Bench, answer: Callable[[str], FromWorker]):
    fleet = OneRefused(answer, connects_again=False)
    assert complete(bench, fleet)
    (stop,) = [message for message in fleet.to_first(StopRun) if message.reason]
    kind = type(answer("")).__name__
    assert stop.reason.startswith(f"it sent {kind}, which cannot be right (")


def tensor() -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(numpy.zeros((2, 2))), sink)
    return sink.getvalue().to_pybytes()


WRITTEN, _ = journal.frame_content(journal.RESULTS, pa.RecordBatch.from_pydict({"row": [1, 2], "completion": ["a", "b" * 50]}))
PAYLOADS = {"cut off": WRITTEN[:-80], "a tensor": tensor(), "nothing": b""}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_records_that_are_no_arrow_but_have_the_right_checksum_are_damaged(bench: Bench, payload: str, caplog: pytest.LogCaptureFixture):
    content = PAYLOADS[payload]
    frame = Frame("R", content, blake2b(b"R" + len(content).to_bytes(8, "little") + content, digest_size=16).digest())

    def answer(digest: str) -> FromWorker:
        fleet.tell("worker-1", Frames(digest, 1, 0, (), (), (frame,)))
        fleet.tell("worker-1", Frames(digest, 2, 0, (), (), (frame,)))
        return Frames(digest, 3, 0, (), (), (frame,))

    fleet = OneRefused(answer, connects_again=False)
    assert complete(bench, fleet)
    assert [message.reason for message in fleet.to_first(StopRun) if message.reason] == ["it sent damaged records 3 times"]
    assert len([line for line in caplog.messages if line.startswith("worker-1 sent records that are damaged (")]) == 3


def test_a_worker_of_a_text_run_gets_no_file_of_the_driver(bench: Bench):
    (bench.root / "key").write_text("a secret")

    def answer(digest: str) -> FromWorker:
        fleet.tell("worker-1", PictureWanted(digest, 7, file_name("key", "", bench.root)))
        return RunRefused(digest, ("it has what it wants",))

    fleet = OneRefused(answer, connects_again=False)
    assert complete(bench, fleet)
    assert fleet.to_first(PicturePart) == [PicturePart(fleet.to_first(RunOffer)[0].run, 7, problem="rows of this run have no pictures")]


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


def test_a_worker_that_was_refused_while_it_loaded_is_not_said_to_work_on_the_run(bench: Bench, caplog: pytest.LogCaptureFixture):
    def watch(worker: str, message: FromWorker) -> bool:
        if worker == "worker-1" and isinstance(message, Ready):
            fleet.tell(worker, RunRefused(message.run, ("it is another one",)))
        return True

    fleet = ThreadFleet(engine, 2, watch)
    with caplog.at_level(logging.INFO, "mlx_bulk"):
        assert complete(bench, fleet)
    said = [line.split(":")[0] for line in caplog.messages if line.startswith("worker-")]
    assert said == ["worker-1 is not used", "worker-2 works on the run"] or said == ["worker-2 works on the run", "worker-1 is not used"]
    assert "worker-1" not in {worker for worker, message in fleet.sent if isinstance(message, Lease)}


def test_a_worker_ends_no_lease_of_another_one(bench: Bench):
    ended: list[str] = []

    def watch(worker: str, message: FromWorker) -> bool:
        if isinstance(message, Begun) and not ended:
            ended.append(message.lease)
            fleet.tell("worker-2" if worker == "worker-1" else "worker-1", LeaseDone(message.run, message.lease))
        return True

    fleet = ThreadFleet(engine, 2, watch)
    done = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS, speculate=False)), "cluster", patient())
    fleet.end(True)
    assert done.complete
    rows = [row.position for _, message in fleet.sent if isinstance(message, Lease) for row in pickle.loads(message.rows)]
    assert sorted(rows) == list(range(done.of))
