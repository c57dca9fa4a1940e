"""``mlx-bulk verify --replay RUN``: the run's rows decoded again step by step, with their seeds, under each record's own policy.

In deterministic mode the batches are the run's, shape for shape, and so are the bits. Else batches are others, and a row may come
to another token where two are as good as equal: it is compared up to there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig
from ...runner.checks.engine_setup import fit
from ...runner.checks.row_limits import row_check
from ...runner.core.errors import RowError, RunDirError
from ...runner.core.requests import AnyRequest, BadRow, Generated, Outcome, Row
from ...runner.core.shard_layout import Layout
from ...runner.data.reader import read_rounds
from ...runner.data.rescan import without_stdin
from ...runner.engine.setup import Setup
from ...runner.layers.lm_head import Head
from ...runner.pipeline.run_spec import RunSpec
from ...runner.pipeline.stored_model import RunModel, run_model
from ..kinds import KINDS
from .logprob_diff import LogprobComparison
from .stored_records import Stored, stored_records

Place = tuple[int, int]  # position and sample


def replayed(run: Path) -> LogprobComparison:
    """Holds the stored logprobs and tokens of the run directory ``run`` against those that decoding gives now.

    Raises RunDirError for a run without completions, ModelError where a policy or the model is not there as it was, DataError where
    the input is not.
    """
    with run_model(run) as found:
        config = _unrated(found.config, found.run)
        known = RunSpec.of(config, found.run, KINDS[config.job], afresh=False)
        layout = Layout.of(found.stored)
        if known.found.rows < layout.rows:
            raise RunDirError(f"{run}: its input has {known.found.rows:,} rows now, the run covers {layout.rows:,}; put the input back")
        setup = fit(found.model, config.batch, known.job.wanted)[0]
        comparison = LogprobComparison("replayed", found.float32, exact=config.batch.deterministic)
        for name, called in found.policies():
            now = setup if setup.head is None else replace(setup, head=Head(setup.model))
            _Replay(found, known, layout, now, comparison, called).run(lambda name=name: stored_records(found.run, config, name))
        return comparison


def _unrated(config: GenerateConfig, run: Path) -> GenerateConfig:
    """The config less what has no part in the tokens."""
    config = config.model_copy(update={"data": without_stdin(config.data, run)})
    if isinstance(config, RolloutConfig):  # the adapter of each policy is kept with the run
        config = config.model_copy(update={"rewards": [], "policy": config.policy.model_copy(update={"adapter": None, "reference": None})})
    return config


@dataclass(slots=True)
class _Replay:
    """The records of one policy, shard by shard; ``left`` are those whose outcomes are to come."""

    found: RunModel
    known: RunSpec
    layout: Layout
    setup: Setup
    comparison: LogprobComparison
    policy: str
    left: dict[Place, Stored] = field(default_factory=dict[Place, Stored])

    def run(self, records: Callable[[], Iterator[list[Stored]]]) -> None:
        """Decodes the rows of all ``records`` again and compares."""
        engine = self.known.job.engine(self.setup, None)
        windows = self._windows(records)
        with tqdm(unit=" records", disable=None, leave=False) as bar:
            for outcome in engine.run(lambda wait: next(windows, None), lambda: False):
                self._compare(outcome)
                bar.update()
        self.comparison.diverged += len(self.left)  # no such outcome any more

    def _windows(self, records: Callable[[], Iterator[list[Stored]]]) -> Iterator[list[AnyRequest]]:
        """The requests of each shard that holds some of the records: in deterministic mode of all its rows, else of theirs."""
        shards = sorted({self._shard(record) for batch in records() for record in batch})
        rows = read_rounds(self.known.found, self.found.config.data, self.layout, iter(shards))
        by_shard = groupby(rows, lambda row: self.layout.shard_of(row.position))
        stored = groupby(chain.from_iterable(records()), self._shard)
        check = row_check(self.setup, self.found.model.checkpoint.config)
        for (_, own), (_, theirs) in zip(by_shard, stored, strict=True):
            mine = {(self._position(record), record.sample): record for record in theirs}
            self.left |= mine
            wanted = {position for position, _ in mine}
            asked = (request for row in own if self.setup.static or row.position in wanted for request in self._requests(row))
            if window := [request for request in asked if check(request) is None]:
                yield window

    def _requests(self, row: Row | BadRow) -> list[AnyRequest]:
        try:
            return [] if isinstance(row, BadRow) else self.known.job.requests(row)
        except RowError:  # it went to errors/ before it came to the model
            return []

    def _compare(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Generated) or (record := self.left.pop((outcome.row, outcome.index), None)) is None:
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

    def _position(self, record: Stored) -> int:
        return self.layout.position(record.round, record.row)

    def _shard(self, record: Stored) -> int:
        return self.layout.shard_of(self._position(record))
