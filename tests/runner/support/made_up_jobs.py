"""Makes I/O threads over made-up rows of a job with one column, and a writer that keeps what it gets."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome
from mlx_bulk.runner.core.requests import AnyRequest, BadRow, Generate, Prompt, Request, Row, Sample, Sampling
from mlx_bulk.runner.core.shard_layout import Layout, window_size
from mlx_bulk.runner.engine.interface import EngineInterface
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.pipeline.io_threads import IOThreads, SessionInput, SessionRules, row_windows
from mlx_bulk.runner.pipeline.job import ConfigFiles
from mlx_bulk.runner.store.recovery import Recovered
from mlx_bulk.runner.store.shard_ledger import Ledger


class OneColumn:
    """A job whose rows say how many samples they want; a negative number fails the row."""

    wanted, samples, grouping, pooling = LogprobOptions(), None, None, None
    schema = pa.schema([("row", pa.int64()), ("sample", pa.int32())])

    def requests(self, row: Row) -> list[Request]:
        n = row.columns["n"]
        if n < 0:
            raise RowError("template", f"{n} samples")
        ids = np.array([1], np.int32)
        return [Request(row.position, Prompt("", ids, ids), Generate(Sampling(), tuple(Sample(i, i) for i in range(n))))]

    def record(self, row: Row, request: Request, outcome: Outcome) -> dict[str, Any]:
        return {"row": row.position}

    def config_files(self) -> ConfigFiles:
        return {}

    def engine(self, setup: Setup, reference: Setup | None) -> EngineInterface:
        raise AssertionError("not asked for here")

    def statistics(self, run: Path) -> pa.Table:
        raise AssertionError("not asked for here")

    def closing(self, statistics: pa.Table) -> str:
        raise AssertionError("not asked for here")


class Written:
    """Stands where the writer does, and keeps what it is told."""

    def __init__(self) -> None:
        self.admitted: dict[int, int] = {}
        self.added: list[tuple[int, int]] = []
        self.failed: list[Failure] = []
        self.flushed: list[int] = []

    def admit(self, row: int, samples: int) -> None:
        assert row not in self.admitted
        self.admitted[row] = samples

    def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
        assert self.admitted[row] > sample
        self.added.append((row, sample))

    def fail(self, failure: Failure) -> None:
        self.failed.append(failure)

    running, broken = True, False

    def flush(self, saved: Callable[[], None]) -> None:
        self.flushed.append(len(self.added))
        saved()


def recovered(done: dict[int, Ledger] | None = None) -> Recovered:
    return Recovered(frozenset(), done or {}, {}, {}, {}, 0, 0, 0)


def rows_of(*samples: int) -> list[Row | BadRow]:
    return [Row(position, f"key {position}", {"n": n}) for position, n in enumerate(samples)]


def threads_of(
    rows: Iterator[Row | BadRow] | list[Row | BadRow],
    written: Any,
    done: dict[int, Ledger] | None = None,
    per_shard: int = 8,
    check: Callable[[AnyRequest], str | None] = lambda _: None,
    isolated: Sequence[Sequence[Row | BadRow]] = (),
    fail_fast: bool = False,
    whole_shards: bool = False,
    fatal: dict[int, str] | None = None,
) -> IOThreads:
    """The threads of a session of ``OneColumn`` that nobody stops."""
    layout = Layout(1 << 20, per_shard)
    windows = row_windows(rows, layout, window_size(per_shard, whole_shards))
    session = SessionInput(OneColumn(), windows, layout, recovered(done), isolated)
    rules = SessionRules(check, lambda: False, whole_shards, fail_fast, fatal or {})
    return IOThreads(session, rules, written)


def outcome(row: int, sample: Sample) -> Generated:
    empty = np.zeros(0, np.float32)
    return Generated(row, sample, np.zeros(0, np.int32), Scores(empty), empty, "stop", None, None)


def drive(threads: IOThreads) -> list[list[int]]:
    """Answers all that is asked, as the engine does; the rows of each window."""
    windows: list[list[int]] = []
    try:
        while (window := threads.next_window(True)) is not None:
            windows.append([request.row for request in window])
            for request in window:
                assert isinstance(request, Request)
                for sample in request.work.samples:
                    threads.put(outcome(request.row, sample))
    finally:
        threads.close()
    return windows
