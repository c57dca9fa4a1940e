"""Rows come in and requests go to the engine: the values that travel to the model. What comes back is in ``outcomes.py``.

Plain dataclasses with slots, without behaviour beyond derived values. Generation, scoring and pooling each have a request and an outcome
(``Request``, ``Generated``; ``ScoreRequest``, ``Scored``; ``PoolRequest``, ``Pooled``), so the engine never looks at a job's kind.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from ...configs.sampling import FILTERS
from .arrays import Ids
from .guide import Guidance
from .images import PromptImage


@dataclass(slots=True, frozen=True)
class Row:
    """One input row: its position, the user's key for it, and its columns.

    position: among the rows of all rounds (see ``Layout``); in the first round its number in the input. place: where it was read,
    for messages: the file, and the line where there are lines. source: the file alone; empty for a row of no file.
    """

    position: int
    key: str
    columns: dict[str, Any]
    place: str = field(default="", compare=False)
    round: int = 0
    source: str = field(default="", compare=False)


@dataclass(slots=True, frozen=True)
class BadRow:
    """An input row that could not be read. text: what was found there. line: its 1-based line where there are lines.

    key: its position, or None where keys come from a column.
    """

    position: int
    message: str
    text: str
    line: int | None = None
    key: str | None = None


@dataclass(slots=True, frozen=True)
class Prompt:
    """A rendered prompt: its text, its token ids [T], and the code point at which each token starts [T].

    images: the pictures that its ids stand for, in their order. They live as long as the prompt.
    """

    text: str
    ids: Ids
    offsets: Ids
    images: tuple[PromptImage, ...] = ()


@dataclass(slots=True, frozen=True)
class Sampling:
    """One row's sampling parameters, under the config's names. logit_bias: token id -> bias in natural-log units."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_sequence_breakers: tuple[str, ...] = ()
    logit_bias: dict[int, float] = field(default_factory=dict[int, float])
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0

    @property
    def plain(self) -> bool:
        """True when tokens are drawn from the model's own distribution."""
        return self.temperature == 1.0 and not self.edits and not self.filters

    @property
    def filters(self) -> bool:
        """True when one of ``FILTERS`` can leave tokens out."""
        return any(getattr(self, name) != off for name, off in FILTERS.items())

    @property
    def penalties(self) -> bool:
        """True when earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def edits(self) -> bool:
        """True when logits are changed before they are divided by the temperature."""
        return self.penalties or bool(self.logit_bias) or self.min_tokens > 0 or self.dry_multiplier > 0


@dataclass(slots=True, frozen=True)
class Sample:
    """One of a row's completions: its index, and the seed of its random stream."""

    index: int
    seed: int


@dataclass(slots=True, frozen=True)
class Reading:
    """How a row's finished completions are read.

    turn: the end of the prompt that belongs to the assistant's turn: what the chat template begins it with, and a prefill. reasoning:
    it is split off. calls: calls of tools are read. tools: those that the row has. names: those that may be called, empty for all.
    single: one call is kept.
    """

    turn: str = ""
    reasoning: bool = False
    calls: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    single: bool = False


@dataclass(slots=True, frozen=True)
class PromptChat:
    """The chat that a prompt was made of, for reward models. prefill: begins the assistant's turn. variables: the chat template's own."""

    messages: tuple[dict[str, Any], ...]
    prefill: str
    variables: dict[str, Any]


@dataclass(slots=True, frozen=True)
class Generate:
    """Asks for one completion of the prompt per sample. One prefill serves them all.

    guidance: makes the guide that holds each completion to a grammar; None where any text will do. reading: what becomes of their texts.
    breakers: ids of the tokens that hold one of ``sampling.dry_sequence_breakers``. chat: what the prompt was made of, where reward models
    read it; None for a text.
    """

    sampling: Sampling
    samples: tuple[Sample, ...]
    guidance: Guidance | None = None
    reading: Reading = Reading()
    breakers: frozenset[int] = frozenset()
    chat: PromptChat | None = None


@dataclass(slots=True, frozen=True)
class Request:
    """One row's request to the engine: a prompt to prefill, and the completions to generate after it."""

    row: int
    prompt: Prompt
    work: Generate

    @property
    def samples(self) -> tuple[int, ...]:
        """Indices of the outcomes that are asked for."""
        return tuple([sample.index for sample in self.work.samples])

    @property
    def place(self) -> tuple[int, int]:
        """The row and the first sample that is asked for: a row may have several requests, and no two of them share both."""
        return self.row, self.work.samples[0].index

    @property
    def reach(self) -> int:
        """The most tokens that the row can come to: its prompt and ``max_tokens``."""
        return len(self.prompt.ids) + self.work.sampling.max_tokens

    def without(self, done: set[int]) -> Self:
        """Returns the request without the samples that are ``done``."""
        if not done:
            return self
        left = tuple(sample for sample in self.work.samples if sample.index not in done)
        return replace(self, work=replace(self.work, samples=left))


@dataclass(slots=True, frozen=True)
class Passage:
    """Tokens, some of which are scored, each given all tokens before it.

    ids: [T]. positions: [N], ascending and at least 1: the indices of the ids that are scored. Ids before the first position are
    context; ids after the last have no effect. No position is that of a picture's token.
    """

    ids: Ids
    positions: Ids


@dataclass(slots=True, frozen=True)
class ScoreRequest:
    """One row's request to the scorer: passages, which may share a prefix (several choices after one prompt).

    There are no passages where there is nothing to score (an empty document). images: the pictures that the passages' ids stand for.
    """

    row: int
    passages: tuple[Passage, ...]
    samples: tuple[int, ...] = (0,)
    truncated: bool = False  # the text was cut to fit the context
    images: tuple[PromptImage, ...] = ()

    @property
    def reach(self) -> int:
        """Tokens of the longest passage."""
        return max((len(passage.ids) for passage in self.passages), default=0)

    @property
    def text_tokens(self) -> int:
        """Tokens of the text that is scored, in however many windows."""
        return self.reach

    def without(self, done: set[int]) -> Self:
        """Returns the request without the outcomes that are ``done``."""
        return replace(self, samples=tuple(index for index in self.samples if index not in done))


@dataclass(slots=True, frozen=True)
class TokenInput:
    """One text, or one pair of texts, as a pooling model reads it.

    ids: [T], T at least 1. types: [T], the token types of a pair (0 its first text, 1 its second); None where all are 0. start: the
    first token that pooling counts; what stands before it (a prompt that is left out of the mean) is read all the same.
    """

    ids: Ids
    types: Ids | None = None
    start: int = 0


@dataclass(slots=True, frozen=True)
class PoolRequest:
    """One row's request to the pooler: a vector of each input. A row has several inputs where it has several texts.

    truncated: how many of the inputs were cut to fit the model. images: the pictures that the inputs' ids stand for.
    """

    row: int
    inputs: tuple[TokenInput, ...]
    samples: tuple[int, ...] = (0,)
    truncated: int = 0
    images: tuple[PromptImage, ...] = ()

    @property
    def reach(self) -> int:
        """Tokens of the longest input."""
        return max((len(each.ids) for each in self.inputs), default=0)

    @property
    def text_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(len(each.ids) for each in self.inputs)

    def without(self, done: set[int]) -> Self:
        """Returns the request without the outcomes that are ``done``."""
        return replace(self, samples=tuple(index for index in self.samples if index not in done))


AnyRequest = Request | ScoreRequest | PoolRequest
