"""Makes a job of groups, a judge that answers when a test says so, and a writer that tells what it gets."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.errors import DROP
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Generated
from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Row, Sample, Sampling
from mlx_bulk.runner.core.shard_layout import Layout, window_size
from mlx_bulk.runner.pipeline.io_threads import IOThreads, SessionInput, SessionRules, row_windows
from mlx_bulk.runner.pipeline.job import Ratings
from mlx_bulk.runner.store.recovery import Recovered
from mlx_bulk.runner.store.shard_ledger import Ledger

PATIENCE = 30.0  # seconds after which a test that waits for another thread has failed
SAMPLES = 3


class Slow:
    """A judge whose ratings come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.futures: dict[int, Future[Ratings]] = {}
        self.closed = False
        self.news = threading.Condition()

    def rate(self, row: Row, request: Request, outcomes: Sequence[Generated]) -> Future[Ratings]:
        assert [outcome.index for outcome in outcomes] == list(range(SAMPLES))
        with self.news:
            self.asked.append(row.position)
            self.futures[row.position] = Future()
            self.news.notify_all()
        return self.futures[row.position]

    def rated(self, position: int) -> None:
        self.futures[position].set_result(Ratings({"f": [1.0] * SAMPLES}, {"f": [None] * SAMPLES}))

    def wait_for(self, asked: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.asked) >= asked, PATIENCE)

    def close(self) -> None:
        self.closed = True


class Rolling:
    """A job of groups of three. Row 7 is dropped when it is rated."""

    wanted, samples = LogprobOptions(), SAMPLES
    schema = pa.schema([("row", pa.int64()), ("round", pa.int32()), ("sample", pa.int32())])

    def __init__(self, judge: Slow | None):
        self._judge, self.versions = judge, list[int]()

    @property
    def grouping(self) -> "Rolling":
        return self

    def judge(self) -> Slow | None:
        return self._judge

    def fingerprints(self) -> dict[str, str]:
        return {}

    def requests(self, row: Row) -> list[Request]:
        ids = np.array([1], np.int32)
        return [Request(row.position, Prompt("", ids, ids), Generate(Sampling(), tuple(Sample(i, i) for i in range(SAMPLES))))]

    def group(self, row: Row, request: Request, outcomes: Sequence[Generated], ratings: Ratings, newest: int) -> Any:
        self.versions.append(newest)
        if row.position == 7:
            return Failure(row.position, row.key, None, DROP, "DegenerateGroup", "nothing to compare", "{}")
        return [{"sample": outcome.index} for outcome in outcomes]


class Written:
    """A writer that takes note, and tells when there is something new."""

    running, broken = True, False

    def __init__(self) -> None:
        self.admitted: dict[int, int] = {}
        self.groups: list[tuple[int, list[int]]] = []
        self.failed: list[Failure] = []
        self.news = threading.Condition()

    def admit(self, position: int, samples: int) -> None:
        self.admitted[position] = samples

    def add_group(self, position: int, records: dict[int, dict[str, Any]]) -> None:
        with self.news:
            self.groups.append((position, list(records)))
            self.news.notify_all()

    def fail(self, failure: Failure) -> None:
        with self.news:
            self.failed.append(failure)
            self.news.notify_all()

    def flush(self, saved: Callable[[], None]) -> None:
        saved()

    def wait_for(self, groups: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.groups) >= groups, PATIENCE)


def threads_of(
    rows: int,
    written: Any,
    job: Any,
    done: dict[int, Ledger] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    fail_fast: bool = False,
    whole_shards: bool = False,
    fatal: dict[int, str] | None = None,
    newest_version: Callable[[], int] = lambda: 0,
) -> IOThreads:
    """The threads of a session over ``rows`` made-up rows in shards of ten."""
    made_up = (Row(position, f"key {position}", {"n": position}) for position in range(rows))
    recovered = Recovered(frozenset(), done or {}, {}, {}, {}, 0, 0, 0)
    rules = SessionRules(lambda _: None, stopped, whole_shards, fail_fast, fatal or {})
    layout = Layout(100, 10)
    windows = row_windows(made_up, layout, window_size(10, whole_shards))
    return IOThreads(SessionInput(job, windows, layout, recovered), rules, written, newest_version)


def outcome(position: int, sample: int) -> Generated:
    empty = np.zeros(0, np.float32)
    return Generated(position, Sample(sample, sample), np.zeros(0, np.int32), Scores(empty), empty, "stop", None, None)


def put(threads: IOThreads, position: int, samples: Sequence[int] = range(SAMPLES)) -> None:
    for sample in samples:
        threads.put(outcome(position, sample))
