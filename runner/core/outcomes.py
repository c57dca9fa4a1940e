"""What comes back from an engine for a request: an outcome or a failure. Plain dataclasses, as in ``requests.py``."""

from dataclasses import dataclass

from ...kernels.divergence import Divergence
from ...kernels.logprobs import Scores
from .arrays import Floats, Ids
from .policy import Policy
from .requests import Sample


@dataclass(slots=True, frozen=True)
class Rating:
    """What a reward model gave a completion: a reward, or the reason why there is none, as "kind: text"."""

    reward: float | None
    reason: str | None = None


@dataclass(slots=True, frozen=True)
class Generated:
    """A finished completion. ids: [N]; a token that stopped it is the last id.

    scores: of the N tokens. sampled_logprobs: [N], under the distribution they were drawn from. echo: scores of the prompt's
    tokens after the first [T - 1], shared by all samples. stop_reason: the stop string, or the stop id as a string; None for EOS
    and for ``length``.

    Fields that were not asked for are None. tempered_logprobs: [N], log_softmax of logits / temperature; at temperature 0 as at 1.
    kept_ids: for each token the ids that could be drawn, ascending; None also for a row whose sampling leaves no token out.
    ref_logprobs, ref_tempered_logprobs: [N], under the reference. policy: the policy it was sampled from. grammar_complete: its guide
    accepts the text as a whole; None without a guide. ratings: of the reward models, in the config's order.
    """

    row: int
    sample: Sample
    ids: Ids
    scores: Scores
    sampled_logprobs: Floats
    finish_reason: str
    stop_reason: str | None
    echo: Scores | None
    tempered_logprobs: Floats | None = None
    kept_ids: list[Ids] | None = None
    ref_logprobs: Floats | None = None
    ref_tempered_logprobs: Floats | None = None
    policy: Policy | None = None
    grammar_complete: bool | None = None
    ratings: tuple[Rating, ...] = ()

    @property
    def index(self) -> int:
        """Index of this outcome in its row."""
        return self.sample.index


@dataclass(slots=True, frozen=True)
class Scored:
    """A scored row: for each passage, in the request's order, the scores of its N positions.

    divergences: for each passage, where there is a reference model; None without one.
    """

    row: int
    scores: tuple[Scores, ...]
    divergences: tuple[Divergence, ...] | None = None

    @property
    def index(self) -> int:
        """Index of this outcome in its row, which has only one."""
        return 0


@dataclass(slots=True, frozen=True)
class Pooled:
    """A pooled row. values: [n, D] float32, a vector of each of the request's n inputs, in their order."""

    row: int
    values: Floats

    @property
    def index(self) -> int:
        """Index of this outcome in its row, which has only one."""
        return 0


@dataclass(slots=True, frozen=True)
class Failure:
    """A row, or one sample of it, that could not be done. input: the row as JSON, or the line as it was read."""

    row: int
    key: str | None
    sample: int | None
    stage: str
    error: str
    message: str
    input: str


Outcome = Generated | Scored | Pooled | Failure
