"""What travels through a run: rows come in, requests go to the engine, outcomes come back.

Plain slots dataclasses without behaviour beyond derived values. What a request asks and what an outcome holds are
tagged variants (``Generate`` / ``Generated``; scoring adds its own), so the engine never looks at a job's kind.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from ...kernels.divergence import Divergence
from ...kernels.logprobs import Scores
from .arrays import Floats, Ids
from .policy import Policy


@dataclass(slots=True, frozen=True)
class Row:
    """One input row: its position, the user's key for it, its columns, and where it stands.

    ``position`` is among the rows of all rounds (see ``Layout``): in the first its place among the input's. ``place`` is for
    messages: the file, and the line where there are lines.
    """

    position: int
    key: str
    columns: dict[str, Any]
    place: str = field(default="", compare=False)
    round: int = 0


@dataclass(slots=True, frozen=True)
class BadRow:
    """An input row that could not be read; ``text`` is what stood there, ``line`` its 1-based line where there are lines.

    Its ``key`` is its position, or None where keys come from a column.
    """

    position: int
    message: str
    text: str
    line: int | None = None
    key: str | None = None


@dataclass(slots=True, frozen=True)
class Prompt:
    """A rendered prompt: its text, its token ids [T], and the code point at which each token starts [T]."""

    text: str
    ids: Ids
    offsets: Ids


@dataclass(slots=True, frozen=True)
class Sampling:
    """One row's sampling parameters, by the contract's names; ``logit_bias`` maps token ids to natural-log units."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict[int, float])
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0

    @property
    def plain(self) -> bool:
        """True when the distribution sampled from is the model's own."""
        return self.temperature == 1.0 and not self.edits and not self.filters

    @property
    def filters(self) -> bool:
        """True when top-k, top-p or min-p can leave tokens out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def penalties(self) -> bool:
        """True when tokens already seen change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def edits(self) -> bool:
        """True when logits are changed before the temperature."""
        return self.penalties or bool(self.logit_bias) or self.min_tokens > 0


@dataclass(slots=True, frozen=True)
class Sample:
    """One of a row's completions: its index and the key of its random stream."""

    index: int
    seed: int


@dataclass(slots=True, frozen=True)
class Generate:
    """Asks for one completion of the prompt a sample; one prefill serves them all."""

    sampling: Sampling
    samples: tuple[Sample, ...]


@dataclass(slots=True, frozen=True)
class Request:
    """What one row asks of the engine: token ids to prefill, and what to do behind them."""

    row: int
    prompt: Prompt
    work: Generate

    @property
    def samples(self) -> tuple[int, ...]:
        """Indices of the outcomes asked for."""
        return tuple(sample.index for sample in self.work.samples)

    @property
    def reach(self) -> int:
        """Tokens that the row can hold in the end: the prompt and all it may generate."""
        return len(self.prompt.ids) + self.work.sampling.max_tokens

    def without(self, done: set[int]) -> Self:
        """The same less the samples that are ``done``."""
        left = tuple(sample for sample in self.work.samples if sample.index not in done)
        return replace(self, work=Generate(self.work.sampling, left)) if done else self


@dataclass(slots=True, frozen=True)
class Passage:
    """Tokens of which some are scored, each behind all that stand before it.

    ids: [T]. positions: [N], ascending and at least 1: the indices of the ids whose logprob is asked for. Those before the
    first are context, and tokens behind the last are not looked at.
    """

    ids: Ids
    positions: Ids


@dataclass(slots=True, frozen=True)
class ScoreRequest:
    """What one row asks of the scorer: passages, which may begin alike (several choices behind one prompt).

    None where there is nothing to score (an empty document).
    """

    row: int
    passages: tuple[Passage, ...]
    samples: tuple[int, ...] = (0,)
    truncated: bool = False  # the text was cut to fit the context

    @property
    def reach(self) -> int:
        """Tokens of the longest passage."""
        return max((len(passage.ids) for passage in self.passages), default=0)

    @property
    def text_tokens(self) -> int:
        """Tokens of the text that is scored, however many windows it is cut into."""
        return self.reach

    def without(self, done: set[int]) -> Self:
        """The same, with nothing asked for where it is ``done``."""
        return replace(self, samples=tuple(index for index in self.samples if index not in done))


@dataclass(slots=True, frozen=True)
class Generated:
    """A finished completion. ids, sampled_logprobs: [N]; the token that stopped it is the last id.

    ``scores`` are the completion's N tokens', ``echo`` those of the prompt's tokens behind the first [T - 1], shared by
    its samples. ``stop_reason`` is the stop string or the stop id as string, None for EOS and for ``length``.

    What was not asked for is None. tempered_logprobs: [N], log_softmax of logits / temperature, as at 1 where it is 0.
    kept_ids: of each token the ascending ids that could be drawn; None too for a row that leaves none out. ref_logprobs,
    ref_tempered_logprobs: [N], those of the reference. policy: what it was sampled from.
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

    @property
    def index(self) -> int:
        """Which of the row's outcomes this is."""
        return self.sample.index


@dataclass(slots=True, frozen=True)
class Scored:
    """A scored row: of each passage, in the request's order, the scores of its N positions.

    ``divergences`` likewise, where there is a reference model; None without one.
    """

    row: int
    scores: tuple[Scores, ...]
    divergences: tuple[Divergence, ...] | None = None

    @property
    def index(self) -> int:
        """Which of the row's outcomes this is: a row has one."""
        return 0


@dataclass(slots=True, frozen=True)
class Failure:
    """A row, or one sample of it, that could not be done. ``input`` is the row as JSON, or the line as it stood."""

    row: int
    key: str | None
    sample: int | None
    stage: str
    error: str
    message: str
    input: str


AnyRequest = Request | ScoreRequest
Outcome = Generated | Scored | Failure
