"""Measures how long a run will take, by a trial of some of its rows. The trial gives the cost of a call, a step and a token.

The rows are spread over all lengths. Their times, turn by turn, give the costs. The costs times the work forecast for the whole run
give its time. Nothing is written.
"""

from dataclasses import dataclass, field, replace
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ...configs.errors import BulkError
from ...configs.schema import JobConfig
from ..core.outcomes import Failure, Generated
from ..core.progress import Progress
from ..core.requests import AnyRequest, Request, Row, Sample
from ..data.reader import read_rows
from ..engine.interface import EngineInterface
from ..engine.setup import Setup
from ..models.model_pool import ModelPool
from ..pipeline.loading import load_models
from ..pipeline.run_spec import RunSpec
from ..policies.policy_engine import sampling_limits
from .forecast import Work
from .survey import Survey

SECONDS = 20.0  # after this time no further window of rows starts
MOST_SECONDS = 120.0  # after this time unfinished rows are cut off
WINDOWS = 16
COSTS = ("steps", "generated", "calls", "padded", "scored")


@dataclass(slots=True, frozen=True)
class Calibration:
    """The results of a trial. load_seconds: until the model was ready; costs: seconds of one unit of each of ``COSTS``.

    rows, seconds: the rows of the trial, and their time without the first turn, which warms up. lengths: tokens of the completions.
    unfinished: completions that were cut off; they count in ``lengths`` with their ``max_tokens``.
    """

    load_seconds: float
    costs: dict[str, float]
    rows: int
    seconds: float
    lengths: list[int]
    unfinished: int

    def seconds_of(self, work: Work) -> float:
        """Returns the seconds that ``work`` takes once the model is loaded."""
        return sum(self.costs[name] * getattr(work, name) for name in COSTS)

    def length(self, request: Request, sample: Sample) -> int:
        """Returns the tokens of a completion: those of a measured one, which row and sample choose."""
        most = request.work.sampling.max_tokens
        if not self.lengths:
            return most
        return min(most, self.lengths[(request.row * 7_919 + sample.index) % len(self.lengths)])


def longest_completion(request: Request, sample: Sample) -> int:
    """Returns the tokens of a completion that only its ``max_tokens`` ends."""
    return request.work.sampling.max_tokens


def calibrate(config: JobConfig, spec: RunSpec, survey: Survey, models: ModelPool) -> Calibration:
    """Loads the model into ``models`` and times rows of the survey. Raises any error that stops a run at its start."""
    begin = monotonic()
    batch = config.batch.model_copy(update={"prefix_cache": None})  # nothing is written
    loaded = load_models(spec.models(config), batch, spec.job.wanted, models)
    adapters = loaded.model.adapters
    weights = loaded.model.parameter_bytes if adapters is None else adapters.nbytes
    setup = replace(loaded.setup, limits=sampling_limits(loaded.setup.limits, config, weights))
    load_seconds = monotonic() - begin
    windows = _windows(config, spec, survey, setup)
    # A group's reference logprobs and rewards come from elsewhere, beside the engine.
    trial = _Trial(spec.job.engine(setup, loaded.reference if spec.job.grouping is None else None), windows)
    trial.run()
    return trial.calibration(load_seconds)


def _windows(config: JobConfig, spec: RunSpec, survey: Survey, setup: Setup) -> list[list[AnyRequest]]:
    """Returns requests of real rows. Each window has rows of all lengths, and fills some batches."""
    order = np.argsort(np.array(survey.lengths), kind="stable")
    mean = max(1.0, float(np.mean(survey.lengths)))
    rows = max(2 * setup.limits.rows, int(8 * setup.limits.tokens / mean))
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), WINDOWS * rows)).astype(int))]
    count = -(-len(chosen) // rows)
    positions = np.array(survey.positions)[chosen]
    window_of = {int(position): number % count for number, position in enumerate(positions)}
    windows: list[list[AnyRequest]] = [[] for _ in range(count)]
    for row in read_rows(spec.scan, config.data, [range(position, position + 1) for position in sorted(window_of)]):
        assert isinstance(row, Row), "a row that could be read"
        windows[window_of[row.position]] += spec.job.requests(row)
    return windows


@dataclass(slots=True)
class _Trial:
    """A trial run of ``windows``. ``marks``: the time and the engine's counts at each turn, [turn, 1 + costs]."""

    engine: EngineInterface
    windows: list[list[AnyRequest]]
    requests: list[AnyRequest] = field(default_factory=list[AnyRequest])  # handed to the engine
    marks: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    tokens: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])  # by (row, sample): of what has ended

    def run(self) -> None:
        begin, rest = monotonic(), iter(self.windows)

        def next_window(wait: bool) -> list[AnyRequest] | None:
            window = next(rest, None) if monotonic() - begin < SECONDS else None
            self.requests += window or []
            return window

        def stopped() -> bool:
            self.marks.append(_mark(self.engine.progress))
            return monotonic() - begin > MOST_SECONDS

        for outcome in self.engine.run(next_window, stopped):
            if isinstance(outcome, Failure):
                raise BulkError(f"row {outcome.row} of the calibration failed at {outcome.stage}: {outcome.message}")
            self.tokens[outcome.row, outcome.index] = len(outcome.ids) if isinstance(outcome, Generated) else 0
        self.marks.append(_mark(self.engine.progress))

    def calibration(self, load_seconds: float) -> Calibration:
        completions = [(r, i) for r in self.requests if isinstance(r, Request) for i in r.samples]
        unfinished = [request for request, index in completions if (request.row, index) not in self.tokens]
        lengths = [self.tokens[r.row, i] for r, i in completions if (r.row, i) in self.tokens]
        turns = np.diff(np.array(self.marks), axis=0)
        turns = _merge_idle(turns[turns[:, 0] > 0])
        turns = turns[1:] if len(turns) > 2 else turns
        costs = fit_costs(turns[:, 1:], turns[:, 0])
        lengths += [request.work.sampling.max_tokens for request in unfinished]
        return Calibration(
            load_seconds,
            dict(zip(COSTS, costs.tolist(), strict=True)),
            len(self.requests),
            float(turns[:, 0].sum()),
            lengths,
            len(unfinished),
        )


def _mark(progress: Progress) -> tuple[float, ...]:
    return (monotonic(), *(float(getattr(progress, name, 0)) for name in COSTS))


def _merge_idle(turns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Merges turns [T, 1 + costs] until each has computed a batch or taken a step. A turn with a batch counts one of ``calls``."""
    steps, calls, padded = (1 + COSTS.index(name) for name in ("steps", "calls", "padded"))
    merged: list[NDArray[np.float64]] = []
    total = np.zeros(turns.shape[1])
    for turn in turns:
        total = total + turn
        if turn[steps] or turn[padded]:
            total[calls] = float(turn[padded] > 0)
            merged.append(total)
            total = np.zeros_like(total)
    return np.array(merged) if merged else turns[:0]


def fit_costs(counts: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the seconds of one unit of each cost [N], none below 0: least squares over turns of ``counts`` [T, N] and ``seconds`` [T].

    The costs are scaled so that all turns together take their measured time. A cost that no turn counts is 0.
    """
    costs = np.zeros(counts.shape[1])
    size = np.linalg.norm(counts, axis=0)
    used = np.flatnonzero(size > 0)
    while len(used):
        solution = np.linalg.lstsq(counts[:, used] / size[used], seconds, rcond=1e-6)[0] / size[used]
        if (solution >= 0).all():
            costs[used] = solution
            break
        used = np.delete(used, int((solution * size[used]).argmin()))
    predicted = float((counts @ costs).sum())
    return costs * (float(seconds.sum()) / predicted) if predicted > 0 else costs
