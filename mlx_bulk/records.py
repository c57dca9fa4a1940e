"""The records that a ``Model`` returns: completions and scores, with the figures that a run's records hold.

N is the number of a completion's tokens, T that of a prompt's or a text's, k of the alternatives asked for. Logprobs are natural
logarithms. Arrays are NumPy's. What was not asked for is None.
"""

from dataclasses import dataclass

import numpy as np
from mlx_bulk.jobs.statistics.standard_errors import perplexity
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RecordError:
    """Why a prompt or a text could not be done.

    stage: where it failed: template, tokenize, too_long, sampling, grammar, generate or score. kind: the error's class.
    message: what to do.
    """

    stage: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Completion:
    """One completion of a prompt.

    index: its place among the prompt's samples. text: without what ended it. ids: [N], the one that ended it included. logprobs: [N],
    of the model's own distribution. cumulative_logprob: their sum. sampled_logprobs: [N], of the distribution drawn from; None where
    it is the model's own. text_offset: [N], the code point of ``text`` at which each token starts. finish_reason: "stop" or "length".
    stop_reason: the stop string, or the stop id as text; None for EOS and for "length". seed: of its random stream.
    grammar_complete: the text is a whole text of the grammar; None without a grammar. reasoning: what the model wrote between its marks of
    reasoning; content: the text without it, None where it is all reasoning. Both are None where the model has no such marks.
    top_ids, top_logprobs: [N, k], most likely first. ranks, entropies: [N], with ``stats``.
    """

    index: int
    text: str
    ids: Ids
    logprobs: Floats
    cumulative_logprob: float
    sampled_logprobs: Floats | None
    text_offset: Ids
    finish_reason: str
    stop_reason: str | None
    grammar_complete: bool | None
    seed: int
    top_ids: Ids | None
    top_logprobs: Floats | None
    ranks: Ids | None
    entropies: Floats | None
    reasoning: str | None = None
    content: str | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GenerateResult:
    """A prompt and its completions.

    prompt: the text that the model was given, the chat template applied. prompt_ids: [T]. prompt_text_offset: [T].
    outputs: the completions in the order of their samples; those that failed are not among them.
    error: why the prompt, or the first of its samples that failed, could not be done; None where all were.
    prompt_logprobs: [T], NaN for the first token. prompt_top_ids, prompt_top_logprobs: [T, k], -1 and NaN for the first.
    prompt_ranks, prompt_entropies: [T], 0 and NaN for the first.
    """

    prompt: str
    prompt_ids: Ids
    prompt_text_offset: Ids
    outputs: tuple[Completion, ...]
    error: RecordError | None = None
    prompt_logprobs: Floats | None = None
    prompt_top_ids: Ids | None = None
    prompt_top_logprobs: Floats | None = None
    prompt_ranks: Ids | None = None
    prompt_entropies: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScoreResult:
    """A text and the scores of its tokens.

    ids: [T]. logprobs: [T], NaN for a token that is not scored (the first, where nothing stands before it). text_offset: [T].
    sum_logprob: the sum over the scored tokens, None where none is. scored_tokens: how many. bytes, words, chars: of the text;
    scored_bytes: those of the scored tokens. truncated: True where the text was cut.
    top_ids, top_logprobs: [T, k], -1 and NaN where not scored. ranks, entropies: [T], 0 and NaN where not scored.
    error: why the text could not be scored; then it has no tokens.
    """

    text: str
    ids: Ids
    logprobs: Floats
    text_offset: Ids
    sum_logprob: float | None
    scored_tokens: int
    bytes: int
    scored_bytes: int
    words: int
    chars: int
    truncated: bool
    top_ids: Ids | None = None
    top_logprobs: Floats | None = None
    ranks: Ids | None = None
    entropies: Floats | None = None
    error: RecordError | None = None

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative logprob of the scored tokens, as the statistics of a run have it; None where no token is scored."""
        return None if self.sum_logprob is None else perplexity(self.sum_logprob, self.scored_tokens)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClassifyResult:
    """What a classifier, a reranker or a reward model says of an input.

    logits: [L], one a label. label: the name of the most likely one; None where the model gives a score alone. score: of that label,
    or of the one logit, after the activation. tokens: of the input as the model read it. truncated: True where it was cut.
    error: why the input could not be done; then there are no logits and no score.
    """

    logits: Floats
    label: str | None
    score: float | None
    tokens: int
    truncated: bool
    error: RecordError | None = None
