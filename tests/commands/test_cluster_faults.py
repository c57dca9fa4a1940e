"""Workers and drivers that come back, disks that fail, and runs that are begun anew: none of it hangs a run over workers."""

import threading
from dataclasses import replace
from queue import Queue
from time import monotonic
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import Frames, FromWorker, Hello, Lease, LeaseDone, RunOffer
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork, SessionWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.summary import Summary
from mlx_bulk.runner.store.writer import Writer

from ..jobs.support.bench import Bench, Record
from ..jobs.support.cluster_runs import SETTINGS, engine, parts, records, run
from ..runner.support.thread_fleet import PipeEnd, StopEarly, ThreadFleet

ROWS: list[Record] = [{"q": "word " * (1 + row % 7)} for row in range(40)]
HANGING = 60.0  # seconds of a run of less than one

pytestmark = pytest.mark.slow


def patient() -> HostProcess:
    """A process that fails where the run does not end."""
    due = monotonic() + HANGING

    def stopped() -> bool:
        assert monotonic() < due, "the run hangs"
        return False

    return HostProcess(stopped=stopped)


def start(bench: Bench, work: SessionWork, output: str, begin: Start, **sections: Any) -> Summary:
    given: dict[str, Any] = {"rows": ROWS, "batch": {"rows": 4, "rows_per_shard": 8, "deterministic": True}, **sections}
    path = bench.write_config(output={"path": str(bench.root / output)}, **given)
    if given.get("job") in ("score", "embed"):
        written = yaml.safe_load(path.read_text())
        foreign = {"sampling"} if given["job"] == "embed" else {"sampling", "prompt"}
        path.write_text(yaml.safe_dump({name: section for name, section in written.items() if name not in foreign}))
    config: Any = load_config(path)
    return session.run_job(config, KINDS[config.job], begin, patient(), "nothing", work)


def test_a_worker_does_a_row_again_that_an_earlier_lease_called_recorded(bench: Bench):
    """The run was begun anew, or its errors are done again; the worker has been there all the time."""
    fleet = ThreadFleet(engine, 1)
    run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", batch={"deterministic": True})
    fleet.end(True)
    offer = next(message for _, message in fleet.sent if isinstance(message, RunOffer))
    lease = next(message for _, message in fleet.sent if isinstance(message, Lease))
    told: Queue[FromWorker] = Queue()
    end = PipeEnd(told.put)
    worker = threading.Thread(target=engine, args=(end,), daemon=True)
    worker.start()
    positions = range(lease.shard * 8, lease.shard * 8 + 8)
    end.put(offer)
    resolved: dict[str, set[int]] = {}
    for name, recorded in (("a", tuple((at, 0) for at in positions)), ("b", ())):
        end.put(replace(lease, lease=name, recorded=recorded))
        resolved[name] = set()
        while not isinstance(message := told.get(timeout=60), LeaseDone):
            if isinstance(message, Frames):
                resolved[name] |= {at for at, _ in message.resolved}
    end.put(None)
    worker.join(30)
    assert resolved == {"a": set(), "b": set(positions)}


def test_what_a_worker_had_when_it_came_is_nothing_to_the_next_run(bench: Bench):
    """Two starts in one process: the worker told its leases before the first one."""
    early = StopEarly()
    first = ThreadFleet(engine, 1, early.watch)
    assert not run(bench, ClusterWork(lambda: first, ClusterConfig(**SETTINGS)), "cluster", HostProcess(early.stopped)).complete
    first.end(True)
    (digest,) = {message.run for _, message in first.sent if isinstance(message, RunOffer)}

    def serve(end: PipeEnd) -> None:
        for lease in ("before-1", "before-2"):
            end.send(LeaseDone(digest, lease))
        engine(end)

    early = StopEarly(1)
    fleet = ThreadFleet(serve, 1, early.watch, hello=Hello("worker-1", "here", {}, digest, {"before-1": [20, 21], "before-2": [30]}))
    work = ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS))
    assert not run(bench, work, "cluster", HostProcess(early.stopped)).complete
    early.go_on()
    over = run(bench, work, "cluster", patient())
    fleet.end(True)
    assert over.complete


def test_a_disk_that_fails_with_the_last_records_ends_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The driver has already asked what is recorded; nothing more comes from the workers."""
    asked, look_up = threading.Event(), Writer.look_up

    def ask(self: Writer, *arguments: Any) -> None:
        look_up(self, *arguments)
        asked.set()

    def fail(*arguments: object) -> None:
        asked.wait(30)
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(Writer, "look_up", ask)
    monkeypatch.setattr(Writer, "_land", fail)
    fleet = ThreadFleet(engine, 1)
    with pytest.raises(OSError, match="the disk is broken") as error:
        run(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", patient(), rows=ROWS[:1])
    fleet.end(True)
    assert error.value.__context__ is None  # it did not have to be given up


SCORED: dict[str, Any] = {"job": "score", "score": {"text": "{{ q }}"}}
EMBEDDED: dict[str, Any] = {"job": "embed", "embed": {"pooling": "mean"}, "prompt": {"text": "{{ q }}"}}
SAMPLED: dict[str, Any] = {"data": {"limit": 30}, "sampling": {"n": 2, "max_tokens": 3, "temperature": 1.0}, "on_error": "quarantine"}


@pytest.mark.parametrize("sections", [SCORED, EMBEDDED, SAMPLED], ids=["score", "embed", "samples"])
def test_other_jobs_have_the_records_of_a_plain_run(bench: Bench, sections: dict[str, Any]):
    plain = start(bench, ModelWork(ModelPool()), "plain", Start(), **sections)
    fleet = ThreadFleet(engine, 2)
    over = start(bench, ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS)), "cluster", Start(), **sections)
    fleet.end(True)
    assert (over.rows, over.records, over.complete) == (plain.rows, plain.records, True)
    assert (over.prompt_tokens, over.generated_tokens, over.scored_tokens) == (
        plain.prompt_tokens,
        plain.generated_tokens,
        plain.scored_tokens,
    )
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")


def test_errors_are_done_again(bench: Bench):
    """The second start tries the row that failed again; the third has more rows, of which some lie in the last shard."""
    broken: list[Record] = [*ROWS[:10], {"q": None}, *ROWS[11:20]]
    fleet = ThreadFleet(engine, 2)
    work = ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS))
    first = run(bench, work, "cluster", rows=broken)
    assert (first.records, first.errors) == (19, 1)
    again = start(bench, work, "cluster", Start(retry_errors=True), rows=broken, batch={"rows": 4, "rows_per_shard": 8})
    assert (again.complete, again.records, again.errors) == (True, 19, 1)
    more = start(bench, work, "cluster", Start(), rows=[*broken, *ROWS[20:33]], batch={"rows": 4, "rows_per_shard": 8})
    fleet.end(True)
    assert (more.complete, more.records, more.errors) == (True, 32, 1)
    plain = start(bench, ModelWork(ModelPool()), "plain", Start(), rows=[*broken, *ROWS[20:33]], batch={"rows": 4, "rows_per_shard": 8})
    assert plain.records == 32
    assert records(bench, "cluster") == records(bench, "plain")
