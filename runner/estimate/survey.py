"""Reads the rows of a plan with the code of a run, turns them into requests, checks them, and counts.

An input of more than 200,000 rows is sampled by whole windows, spread evenly over it. Nothing is run and nothing is written.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby

import numpy as np
from tqdm import tqdm

from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ..checks.row_limits import row_check
from ..core import shard_layout
from ..core.arrays import Ids
from ..core.grammar_spec import GrammarSpec
from ..core.outcomes import Failure
from ..core.requests import AnyRequest, BadRow, Generate, PoolRequest, Prompt, Request, Row, ScoreRequest
from ..core.shard_layout import rounds_of
from ..data.reader import read_rows
from ..engine.setup import Setup
from ..pipeline.row_requests import NOTHING_RECORDED, RecordedRows, RowRequests
from ..pipeline.run_spec import RunSpec
from ..scheduler.limits import Limits
from ..scheduler.prefix_tree import common_length
from ..scheduler.prompt_prefixes import arrangement
from ..scheduler.request_queue import Arrange, SharedPrefix, SharedPrefixes
from .forecast import Work, pooling_work, scoring_work, separate_tokens

log = logging.getLogger("mlx_bulk")

SAMPLED_ROWS = 200_000
MANY_ROWS = 10_000  # take a second or more
EXAMPLES = 3  # of each kind of problem
SAMPLE_ROWS = 512  # rows whose records are built to learn their sizes


@dataclass(slots=True)
class RowProblem:
    """Counts the rows that fail at one stage with one class of error. ``examples``: the first messages, which name the rows' places."""

    stage: str
    error: str
    count: int = 0
    examples: list[str] = field(default_factory=list[str])


@dataclass(slots=True, frozen=True)
class RequestShape:
    """The size of a row that generates: the number of its prompt's tokens without the ids, and the shared prefix, if it has one."""

    row: int
    prompt_tokens: int
    work: Generate
    prefix: SharedPrefix | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The request's ``place``."""
        return self.row, self.work.samples[0].index

    @property
    def request(self) -> Request:
        """Builds a request of the same size, whose ids take no memory."""
        ids = _no_ids(self.prompt_tokens)
        return Request(self.row, Prompt("", ids, ids), self.work)


@dataclass(slots=True)
class Survey:
    """Counts from ``rows_read`` of the run's ``rows``, which include all rounds.

    lengths, positions: tokens and position of each row that can be done; the tokens of its prompt, or of all that is scored with the
    text before it. windows: the sizes of requests that generate, one list a window, in the order in which they are taken. work: what
    scorer or pooler compute; separate_tokens: what they would compute passage by passage, or text by text. texts: for a pooling model.
    common_prefix: ids that all prompts begin with. guided_rows: rows under a grammar; grammars: the distinct ones. full_rows: rows that
    reach the end of the context; cut_rows: rows that lose text to it. picture_tokens: of each picture in a prompt; pictures: digests of the
    distinct ones. sample_rows: rows spread over those read, with their requests. failures: some of the rows that can't be done.
    """

    rows: int
    input_rows: int
    rows_read: int = 0
    problems: dict[tuple[str, str], RowProblem] = field(default_factory=dict[tuple[str, str], RowProblem])
    lengths: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    windows: list[list[RequestShape]] = field(default_factory=list[list[RequestShape]])
    work: Work = field(default_factory=Work)
    separate_tokens: int = 0
    texts: int = 0
    common_prefix: Ids | None = None
    guided_rows: int = 0
    grammars: set[GrammarSpec] = field(default_factory=set[GrammarSpec])
    full_rows: int = 0
    cut_rows: int = 0
    picture_tokens: list[int] = field(default_factory=list[int])
    pictures: set[str] = field(default_factory=set[str])
    sample_rows: list[tuple[Row, AnyRequest]] = field(default_factory=list[tuple[Row, AnyRequest]])
    failures: list[Failure] = field(default_factory=list[Failure])

    @property
    def factor(self) -> float:
        """The size of the whole run, as a multiple of the rows read."""
        return self.rows / self.rows_read if self.rows_read else 1.0

    @property
    def bad_rows(self) -> int:
        """Counts the rows that can't be done."""
        return sum(problem.count for problem in self.problems.values())

    @property
    def separate_prompt_tokens(self) -> int:
        """Counts the tokens that would be prefilled if prompts shared no prefixes."""
        return sum(shape.prompt_tokens - 1 for window in self.windows for shape in window)

    def arrangement(self) -> Arrange:
        """Returns an arrangement that repeats the order and the shared prefixes of the windows, whose requests have no ids."""
        prefixes = _without_ids({shape.place: shape.prefix for window in self.windows for shape in window if shape.prefix is not None})
        return lambda requests, limits: (list(requests), prefixes)

    @property
    def generates(self) -> bool:
        """True when rows ask for completions."""
        return any(self.windows)


def survey_rows(config: JobConfig, spec: RunSpec, setups: Sequence[Setup], limits: Limits) -> Survey:
    """Reads the rows as a run with these ``setups`` does, with batches within ``limits``.

    Raises DataError where the input changes meanwhile.
    """
    survey = Survey(spec.scan.rows * rounds_of({"config": config.model_dump()}), spec.scan.rows)
    window = window_rows(config, spec.images is not None)
    configs = [spec.checkpoint.config, *([spec.reference.config] if spec.reference is not None else [])]
    second = None if len(setups) == 1 else (setups[1], configs[1])
    recorded = RecordedRows(NOTHING_RECORDED, shard_layout.Layout(survey.input_rows, config.batch.rows_per_shard))
    row_requests = RowRequests(spec.job, recorded, row_check(setups[0], configs[0], second), {}, False)
    setups = [replace(setups[0], limits=limits), *setups[1:]]
    spans = list(sampled_windows(survey.input_rows, window))
    every = max(1, -(-sum(map(len, spans)) // SAMPLE_ROWS))
    rows = read_rows(spec.scan, config.data, spans)
    if sum(map(len, spans)) > MANY_ROWS:
        log.info("counting the tokens of %d rows, as a run would", sum(map(len, spans)))
    with tqdm(total=sum(map(len, spans)), unit="row", desc="reading", leave=False, disable=None) as bar:
        for _, group in groupby(rows, key=lambda row: row.position // window):
            requests: list[AnyRequest] = []
            for row in group:
                own = _requests(survey, row_requests, row)
                if survey.rows_read % every == 0 and isinstance(row, Row):
                    survey.sample_rows += [(row, request) for request in own]
                survey.rows_read += 1
                requests += own
                bar.update()
            _count_window(survey, requests, setups, spec.checkpoint.context)
    return survey


def window_rows(config: JobConfig, pictures: bool) -> int:
    """Returns how many rows a run of ``config`` has in a window: one shard in deterministic mode and where newer policies may come.

    pictures: rows may have some.
    """
    per_shard = config.batch.rows_per_shard
    watches = isinstance(config, RolloutConfig) and config.policy.watch is not None
    return shard_layout.window_size(per_shard, config.batch.deterministic or watches, pictures)


def sampled_windows(rows: int, window: int) -> Iterator[range]:
    """Yields all rows if they are at most 200,000, else as many from evenly spaced windows; of a large window, only its beginning."""
    if rows <= SAMPLED_ROWS:
        yield range(rows)
        return
    size = min(window, shard_layout.WINDOW_ROWS)
    windows, sampled = -(-rows // window), min(-(-rows // window), SAMPLED_ROWS // size)
    for number in range(sampled):
        start = number * windows // sampled * window
        yield range(start, min(start + size, rows))


def _requests(survey: Survey, row_requests: RowRequests, row: Row | BadRow) -> list[AnyRequest]:
    """Returns a row's requests. A row that can't be done has none, and is counted as a problem."""
    prepared = row_requests.prepare(row)
    for message in prepared.messages:
        if isinstance(message, Failure):
            _count_problem(survey, message)
    return list(prepared.requests)


def _count_problem(survey: Survey, failure: Failure) -> None:
    problem = survey.problems.setdefault((failure.stage, failure.error), RowProblem(failure.stage, failure.error))
    problem.count += 1
    if problem.count <= EXAMPLES:
        problem.examples.append(failure.message)
    if len(survey.failures) < SAMPLE_ROWS:
        survey.failures.append(failure)


def _count_window(survey: Survey, requests: list[AnyRequest], setups: Sequence[Setup], context: int | None) -> None:
    for request in requests:
        survey.lengths.append(request_tokens(request))
        survey.positions.append(request.row)
        survey.full_rows += isinstance(request, Request) and request.reach == context
        survey.cut_rows += not isinstance(request, Request) and bool(request.truncated)
        for image in request.prompt.images if isinstance(request, Request) else getattr(request, "images", ()):
            survey.picture_tokens.append(image.tokens)
            survey.pictures.add(image.digest)
    prompts = [request for request in requests if isinstance(request, Request)]
    for request in prompts:
        if request.work.guidance is not None and (grammar := request.work.guidance.grammar) is not None:
            survey.guided_rows += 1
            survey.grammars.add(grammar)
        ids, common = request.prompt.ids, survey.common_prefix
        survey.common_prefix = ids if common is None else common[: common_length(common, ids)]
    if prompts:
        order, prefixes = arrangement(setups[0].shares_prompts)(prompts, setups[0].group_limits)
        prefixes = _without_ids(prefixes)
        survey.windows.append(
            [RequestShape(request.row, len(request.prompt.ids), request.work, prefixes.get(request.place)) for request in order]
        )
    if scored := [request for request in requests if isinstance(request, ScoreRequest)]:
        survey.work.add(scoring_work(scored, setups))
        survey.separate_tokens += separate_tokens(scored)
    if pooled := [request for request in requests if isinstance(request, PoolRequest)]:
        survey.work.add(pooling_work(pooled, setups[0]))
        survey.texts += sum(len(request.inputs) for request in pooled)
        survey.separate_tokens += sum(request.text_tokens for request in pooled)


def request_tokens(request: AnyRequest) -> int:
    """Counts a prompt's tokens; for scoring, those of the text, or of the prompt with its longest choice."""
    return len(request.prompt.ids) if isinstance(request, Request) else request.text_tokens


def _without_ids(prefixes: SharedPrefixes) -> dict[tuple[int, int], SharedPrefix]:
    """Copies shared prefixes. The copies are as long and not in use, and their ids take no memory."""
    copies: dict[SharedPrefix, SharedPrefix] = {}

    def copy(prefix: SharedPrefix) -> SharedPrefix:
        if prefix not in copies:
            copies[prefix] = SharedPrefix(_no_ids(len(prefix.ids)), None if prefix.parent is None else copy(prefix.parent))
        return copies[prefix]

    return {place: copy(prefix) for place, prefix in prefixes.items()}


@cache
def _no_ids(tokens: int) -> Ids:
    return np.broadcast_to(np.int32(0), tokens)
