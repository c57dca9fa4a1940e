"""``mlx-bulk verify --replay RUN``: decodes the run's rows again, with their seeds, under each record's own policy.

In deterministic mode batches have the run's shapes, and results the same bits. Otherwise batches differ, and a row may get another
token where two are almost equally likely: it is compared up to there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ...runner.core.outcomes import Generated, Outcome
from ...runner.core.requests import AnyRequest
from ...runner.engine.setup import Setup
from ...runner.pipeline.stored_model import CHANGED_PICTURE, StoredInput, run_model
from ...runner.rescore.stored_records import StoredRecord, stored_records
from ..kinds import KINDS
from .logprob_diff import LogprobComparison

Place = tuple[int, int]  # position and sample


def replay_run(run: Path) -> LogprobComparison:
    """Compares the stored logprobs and tokens of the run directory ``run`` with those that decoding gives now.

    Raises RunDirError for a run without completions, ModelError where a policy or the model is missing or changed, DataError where
    the input is.
    """
    with run_model(run) as model:
        stored = model.input(KINDS[model.config.job])
        loaded = model.load(model.config.batch, stored.job.wanted, stored.spec.images)
        batch = model.config.batch
        comparison = LogprobComparison("replayed", loaded.float32, exact=batch.deterministic, kv_bits=batch.kv_bits)
        for name, label, setup in model.policies(loaded):
            replay = _Replay(stored, loaded.row_check(), setup, comparison, label)
            replay.run(lambda name=name: stored_records(model.run, model.config, name))
        return comparison


@dataclass(slots=True)
class _Replay:
    """Replays the records of one policy, shard by shard; ``pending`` are those whose outcomes are to come."""

    input: StoredInput
    check: Callable[[AnyRequest], str | None]
    setup: Setup
    comparison: LogprobComparison
    policy: str
    pending: dict[Place, StoredRecord] = field(default_factory=dict[Place, StoredRecord])

    def run(self, records: Callable[[], Iterator[list[StoredRecord]]]) -> None:
        """Decodes the rows of all ``records`` again and compares them."""
        engine = self.input.job.engine(self.setup, None)
        windows = self._windows(records)
        with tqdm(unit=" records", disable=None, leave=False) as bar:
            for outcome in engine.run(lambda wait: next(windows, None), lambda: False):
                self._compare(outcome)
                bar.update()
        for record in self.pending.values():
            self.comparison.lost.add("decoding gives no such completion now", record.row)
        self.pending.clear()

    def _windows(self, records: Callable[[], Iterator[list[StoredRecord]]]) -> Iterator[list[AnyRequest]]:
        """Yields the requests of each shard with records: in deterministic mode of all its rows, else of the records' rows."""
        shards = sorted({self._shard(record) for batch in records() for record in batch})
        by_shard = groupby(self.input.rows(shards), lambda row: self.input.layout.shard_of(row.position))
        stored = groupby(chain.from_iterable(records()), self._shard)
        for (_, own), (_, theirs) in zip(by_shard, stored, strict=True):
            mine = {(self._position(record), record.sample): record for record in theirs}
            self.pending |= mine
            positions = {position for position, _ in mine}
            rows = [row for row in own if self.setup.static or row.position in positions]
            changed = {row.position for row in rows if self.input.picture_changed(row)}
            for place in [place for place in mine if place[0] in changed]:
                self.comparison.lost.add(CHANGED_PICTURE, self.pending.pop(place).row)
            rows = [row for row in rows if row.position not in changed]
            requests = (request for row in rows for request in self.input.requests(row))
            if window := [request for request in requests if self.check(request) is None]:
                yield window

    def _compare(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Generated) or (record := self.pending.pop((outcome.row, outcome.index), None)) is None:
            return
        self.comparison.records += 1
        ids, n = record.completion, min(len(record.completion), len(outcome.ids))
        differ = np.flatnonzero(ids[:n] != outcome.ids[:n])
        same = int(differ[0]) if len(differ) else n
        if len(differ) or len(ids) != len(outcome.ids):
            self.comparison.diverged += 1
        now = {
            "logprobs": outcome.scores.logprobs,
            "tempered_logprobs": outcome.tempered_logprobs,
            "sampled_logprobs": outcome.sampled_logprobs,
        }
        for figure, stored in record.figures.items():
            if (other := now[figure]) is not None:
                self.comparison.add(self.policy, figure, stored[:same], other[:same])

    def _position(self, record: StoredRecord) -> int:
        return self.input.layout.position(record.round, record.row)

    def _shard(self, record: StoredRecord) -> int:
        return self.input.layout.shard_of(self._position(record))
