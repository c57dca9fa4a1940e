"""The rows of a plan: read, made into requests and checked by the code that a run uses, window by window, then counted.

Of an input of more than 200,000 rows whole windows spread evenly over it are read. Nothing is run and nothing is written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from tqdm import tqdm

from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ..checks.row_limits import row_check
from ..core import shard_layout
from ..core.arrays import Ids
from ..core.requests import AnyRequest, BadRow, Failure, Generate, Prompt, Request, Row, ScoreRequest
from ..core.shard_layout import rounds_of
from ..data.reader import read_rows
from ..engine.setup import Setup
from ..pipeline.row_requests import NOTHING_RECORDED, RecordedRows, RowRequests
from ..pipeline.run_spec import RunSpec
from ..scheduler.limits import Limits
from ..scheduler.prefix_tree import common_length
from ..scheduler.prompt_prefixes import arrangement
from ..scheduler.request_queue import Arrange, SharedPrefix, SharedPrefixes
from .forecast import Work, scoring_work, separate_tokens

SAMPLED_ROWS = 200_000
EXAMPLES = 3  # of each kind of problem
KEPT = 512  # rows whose records' sizes are tried out


@dataclass(slots=True)
class RowProblem:
    """Rows of one stage and class of error: how many, and the first messages, which say where the rows stand."""

    stage: str
    error: str
    count: int = 0
    examples: list[str] = field(default_factory=list[str])


@dataclass(slots=True, frozen=True)
class RequestShape:
    """What counts of a row that generates: its prompt's tokens alone, none of them, and the prefix that it shares with others."""

    row: int
    prompt_tokens: int
    work: Generate
    stem: SharedPrefix | None = None

    @property
    def request(self) -> Request:
        """A request of the same size, whose ids take no memory."""
        ids = _no_ids(self.prompt_tokens)
        return Request(self.row, Prompt("", ids, ids), self.work)


@dataclass(slots=True)
class Survey:
    """What was found in ``looked_at`` of the run's ``rows``, those of all rounds. Counts are of the rows looked at.

    lengths: tokens of each row that can be done, at its ``positions``: of a prompt, or of what is scored with all before it.
    windows: the shapes of what generates, a list a window, in the order in which they are taken; work, asked: what scoring feeds, and
    what it would feed passage by passage. common: the ids that all prompts begin with. full: rows that reach to the end of the
    context, cut: that lose text to it. kept: rows spread over those looked at, with their requests; failures: some of those that
    cannot be done.
    """

    rows: int
    input_rows: int
    looked_at: int = 0
    problems: dict[tuple[str, str], RowProblem] = field(default_factory=dict[tuple[str, str], RowProblem])
    lengths: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    windows: list[list[RequestShape]] = field(default_factory=list[list[RequestShape]])
    work: Work = field(default_factory=Work)
    separate_tokens: int = 0
    common: Ids | None = None
    full: int = 0
    cut: int = 0
    kept: list[tuple[Row, AnyRequest]] = field(default_factory=list[tuple[Row, AnyRequest]])
    failures: list[Failure] = field(default_factory=list[Failure])

    @property
    def factor(self) -> float:
        """By how much the whole run is larger than what was looked at."""
        return self.rows / self.looked_at if self.looked_at else 1.0

    @property
    def bad(self) -> int:
        """Rows that cannot be done."""
        return sum(problem.count for problem in self.problems.values())

    @property
    def fed_apart(self) -> int:
        """Tokens that are prefilled where each prompt is by itself."""
        return sum(shape.prompt_tokens - 1 for window in self.windows for shape in window)

    def arranged(self) -> Arrange:
        """How the windows' requests, which have no ids, are arranged: as they were."""
        found = {shape.row: shape.stem for window in self.windows for shape in window if shape.stem is not None}
        stems = _without_ids(found)
        return lambda requests, limits: (list(requests), stems)

    @property
    def generates(self) -> bool:
        """Whether rows ask for completions."""
        return any(self.windows)


def surveyed(config: JobConfig, known: RunSpec, setups: Sequence[Setup], limits: Limits) -> Survey:
    """Reads the rows as a run with these ``setups`` would, whose batches keep to ``limits``.

    Raises DataError where the input changes meanwhile.
    """
    found = Survey(known.found.rows * rounds_of({"config": config.model_dump()}), known.found.rows)
    window = window_rows(config)
    configs = [known.checkpoint.config, *([known.reference.config] if known.reference is not None else [])]
    second = None if len(setups) == 1 else (setups[1], configs[1])
    recorded = RecordedRows(NOTHING_RECORDED, shard_layout.Layout(found.input_rows, config.batch.rows_per_shard))
    row_requests = RowRequests(known.job, recorded, row_check(setups[0], configs[0], second), {}, False)
    setups = [replace(setups[0], limits=limits), *setups[1:]]
    spans = list(sampled_windows(found.input_rows, window))
    every = max(1, -(-sum(map(len, spans)) // KEPT))
    rows = read_rows(known.found, config.data, spans)
    with tqdm(total=sum(map(len, spans)), unit="row", desc="reading", leave=False, disable=None) as bar:
        for _, group in groupby(rows, key=lambda row: row.position // window):
            requests: list[AnyRequest] = []
            for row in group:
                own = _requests(found, row_requests, row)
                if found.looked_at % every == 0 and isinstance(row, Row):
                    found.kept += [(row, request) for request in own]
                found.looked_at += 1
                requests += own
                bar.update()
            _count(found, requests, setups, known.checkpoint.context)
    return found


def window_rows(config: JobConfig) -> int:
    """Returns how many rows a run of ``config`` has in a window: one shard in deterministic mode and where newer policies may come."""
    per_shard = config.batch.rows_per_shard
    watches = isinstance(config, RolloutConfig) and config.policy.watch is not None
    return per_shard * shard_layout.window_shards(per_shard, config.batch.deterministic or watches)


def sampled_windows(rows: int, window: int) -> Iterator[range]:
    """All rows where they are at most 200,000, else as many from windows at even distances; a larger window counts with its beginning."""
    if rows <= SAMPLED_ROWS:
        yield range(rows)
        return
    size = min(window, shard_layout.WINDOW_ROWS)
    windows, taken = -(-rows // window), min(-(-rows // window), SAMPLED_ROWS // size)
    for number in range(taken):
        start = number * windows // taken * window
        yield range(start, min(start + size, rows))


def _requests(found: Survey, row_requests: RowRequests, row: Row | BadRow) -> list[AnyRequest]:
    """A row's requests; none where it cannot be done, which is counted."""
    prepared = row_requests.prepare(row)
    for message in prepared.messages:
        if isinstance(message, Failure):
            _problem(found, message)
    return list(prepared.requests)


def _problem(found: Survey, failure: Failure) -> None:
    problem = found.problems.setdefault((failure.stage, failure.error), RowProblem(failure.stage, failure.error))
    problem.count += 1
    if problem.count <= EXAMPLES:
        problem.examples.append(failure.message)
    if len(found.failures) < KEPT:
        found.failures.append(failure)


def _count(found: Survey, requests: list[AnyRequest], setups: Sequence[Setup], context: int | None) -> None:
    """Takes in a window."""
    for request in requests:
        found.lengths.append(request_tokens(request))
        found.positions.append(request.row)
        found.full += isinstance(request, Request) and request.reach == context
        found.cut += isinstance(request, ScoreRequest) and request.truncated
    prompts = [request for request in requests if isinstance(request, Request)]
    for request in prompts:
        found.common = request.prompt.ids if found.common is None else found.common[: common_length(found.common, request.prompt.ids)]
    if prompts:
        order, stems = arrangement(setups[0].shares)(prompts, setups[0].group_limits)
        lengths = _without_ids(stems)
        found.windows.append(
            [RequestShape(request.row, len(request.prompt.ids), request.work, lengths.get(request.row)) for request in order]
        )
    if scored := [request for request in requests if isinstance(request, ScoreRequest)]:
        found.work.add(scoring_work(scored, setups))
        found.separate_tokens += separate_tokens(scored)


def request_tokens(request: AnyRequest) -> int:
    """A prompt's tokens; of what is scored, the text's, or the prompt's with its longest choice."""
    return len(request.prompt.ids) if isinstance(request, Request) else request.text_tokens


def _without_ids(stems: SharedPrefixes) -> dict[int, SharedPrefix]:
    """New stems that are as long, whose ids take no memory."""
    found: dict[SharedPrefix, SharedPrefix] = {}

    def of(stem: SharedPrefix) -> SharedPrefix:
        if stem not in found:
            found[stem] = SharedPrefix(_no_ids(len(stem.ids)), None if stem.parent is None else of(stem.parent))
        return found[stem]

    return {row: of(stem) for row, stem in stems.items()}


def _no_ids(tokens: int) -> Ids:
    return np.broadcast_to(np.int32(0), tokens)
