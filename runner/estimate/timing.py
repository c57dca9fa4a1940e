"""How long a run will take, by some of its own rows put through its own model: what a call, a step and a token cost here.

The rows are spread over the lengths of all. Their times, turn by turn, give the costs; the work forecast of the whole run gives
the rest. Nothing is written.
"""

from dataclasses import dataclass, field, replace
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ...configs.errors import BulkError
from ...configs.schema import JobConfig
from ..core.requests import AnyRequest, Failure, Generated, Request, Row, Sample
from ..data.reader import read_rows
from ..engine.interface import Progress, Runs
from ..engine.setup import Setup
from ..models.model_pool import ModelPool
from ..pipeline.loading import load_models
from ..pipeline.run_spec import RunSpec
from ..policies.policy_engine import sampling_limits
from .forecast import Work
from .survey import Survey

SECONDS = 20.0  # no further window of rows is begun after so long
MOST_SECONDS = 120.0  # and what has not ended then is cut off
WINDOWS = 16
COSTS = ("steps", "generated", "calls", "padded", "scored")


@dataclass(slots=True, frozen=True)
class Calibration:
    """What was measured. load_seconds: until the model was ready; costs: seconds of one of each of ``COSTS``.

    rows, seconds, tokens: what was run, without the first batch, which warms up. lengths: tokens of the completions; unfinished:
    those that were cut off, and count in ``lengths`` with all that they may have.
    """

    load_seconds: float
    costs: dict[str, float]
    rows: int
    seconds: float
    lengths: list[int]
    unfinished: int

    def seconds_of(self, work: Work) -> float:
        """How long so much work takes once the model is loaded."""
        return sum(self.costs[name] * getattr(work, name) for name in COSTS)

    def length(self, request: Request, sample: Sample) -> int:
        """Tokens of a completion: those of one that was measured, a different one for each."""
        most = request.work.sampling.max_tokens
        if not self.lengths:
            return most
        return min(most, self.lengths[(request.row * 7_919 + sample.index) % len(self.lengths)])


def to_the_end(request: Request, sample: Sample) -> int:
    """Tokens of a completion that nothing ends before its ``max_tokens``."""
    return request.work.sampling.max_tokens


def calibrated(config: JobConfig, known: RunSpec, survey: Survey, models: ModelPool) -> Calibration:
    """Loads the model into ``models`` and times rows of the survey. Raises what a run raises that cannot begin."""
    begin = monotonic()
    batch = config.batch.model_copy(update={"prefix_cache": None})  # nothing is written
    loaded = load_models(known.models(config), batch, known.job.wanted, models)
    setup = replace(loaded.setup, limits=sampling_limits(loaded.setup.limits, config, loaded.model.weight_bytes))
    load_seconds = monotonic() - begin
    windows = _windows(config, known, survey, setup)
    # A group's reference logprobs and rewards come from elsewhere, beside the engine.
    trial = _Trial(known.job.engine(setup, loaded.reference if known.job.grouping is None else None), windows)
    trial.run()
    return trial.calibration(load_seconds)


def _windows(config: JobConfig, known: RunSpec, survey: Survey, setup: Setup) -> list[list[AnyRequest]]:
    """Requests of real rows in windows that each have rows of all lengths, and fill some batches."""
    order = np.argsort(np.array(survey.lengths), kind="stable")
    mean = max(1.0, float(np.mean(survey.lengths)))
    rows = max(2 * setup.limits.rows, int(8 * setup.limits.tokens / mean))
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), WINDOWS * rows)).astype(int))]
    count = -(-len(chosen) // rows)
    positions = np.array(survey.positions)[chosen]
    wanted = {int(position): number % count for number, position in enumerate(positions)}
    windows: list[list[AnyRequest]] = [[] for _ in range(count)]
    for row in read_rows(known.found, config.data, [range(position, position + 1) for position in sorted(wanted)]):
        assert isinstance(row, Row), "a row that could be read"
        windows[wanted[row.position]] += known.job.requests(row)
    return windows


@dataclass(slots=True)
class _Trial:
    """Windows that are run, and the engine's counts at each turn: [turn, 1 + costs], the time first."""

    engine: Runs
    windows: list[list[AnyRequest]]
    begun: list[AnyRequest] = field(default_factory=list[AnyRequest])
    marks: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    ended: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def run(self) -> None:
        begin, rest = monotonic(), iter(self.windows)

        def next_window(wait: bool) -> list[AnyRequest] | None:
            window = next(rest, None) if monotonic() - begin < SECONDS else None
            self.begun += window or []
            return window

        def stopped() -> bool:
            self.marks.append(_mark(self.engine.progress))
            return monotonic() - begin > MOST_SECONDS

        for outcome in self.engine.run(next_window, stopped):
            if isinstance(outcome, Failure):
                raise BulkError(f"row {outcome.row} of the calibration failed at {outcome.stage}: {outcome.message}")
            self.ended[outcome.row, outcome.index] = len(outcome.ids) if isinstance(outcome, Generated) else 0
        self.marks.append(_mark(self.engine.progress))

    def calibration(self, load_seconds: float) -> Calibration:
        completions = [(r, i) for r in self.begun if isinstance(r, Request) for i in r.samples]
        unfinished = [request for request, index in completions if (request.row, index) not in self.ended]
        lengths = [self.ended[r.row, i] for r, i in completions if (r.row, i) in self.ended]
        turns = np.diff(np.array(self.marks), axis=0)
        turns = _whole(turns[turns[:, 0] > 0])
        turns = turns[1:] if len(turns) > 2 else turns
        costs = fitted(turns[:, 1:], turns[:, 0])
        lengths += [request.work.sampling.max_tokens for request in unfinished]
        return Calibration(
            load_seconds, dict(zip(COSTS, costs.tolist(), strict=True)), len(self.begun), float(turns[:, 0].sum()), lengths, len(unfinished)
        )


def _mark(progress: Progress) -> tuple[float, ...]:
    return (monotonic(), *(float(getattr(progress, name, 0)) for name in COSTS))


def _whole(turns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turns put together until each has fed a batch or taken a step; one that fed is one of ``calls``."""
    steps, calls, padded = (1 + COSTS.index(name) for name in ("steps", "calls", "padded"))
    found: list[NDArray[np.float64]] = []
    held = np.zeros(turns.shape[1])
    for turn in turns:
        held = held + turn
        if turn[steps] or turn[padded]:
            held[calls] = float(turn[padded] > 0)
            found.append(held)
            held = np.zeros_like(held)
    return np.array(found) if found else turns[:0]


def fitted(counts: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of one of each of N kinds [N], none below 0: least squares over turns of ``counts`` [T, N] that took ``seconds`` [T].

    All turns together come to what they took. What no turn counts costs nothing.
    """
    costs = np.zeros(counts.shape[1])
    size = np.linalg.norm(counts, axis=0)
    used = np.flatnonzero(size > 0)
    while len(used):
        found = np.linalg.lstsq(counts[:, used] / size[used], seconds, rcond=1e-6)[0] / size[used]
        if (found >= 0).all():
            costs[used] = found
            break
        used = np.delete(used, int((found * size[used]).argmin()))
    told = float((counts @ costs).sum())
    return costs * (float(seconds.sum()) / told) if told > 0 else costs
