"""Turns scores into records: the columns of each kind of scoring, and their values. Statistics need nothing else.

Knows neither config nor model: requests bring the text's columns, outcomes the figures.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...kernels import divergence, logprobs
from ...runner.core.outcomes import Scored
from ...runner.store.arrow_builder import Masked
from .requests import ChoicesRequest, TextRequest

Columns = list[tuple[str, pa.DataType]]

FLOATS, INTS, FLAGS = pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.bool_())
TOP: Columns = [("top_ids", pa.list_(INTS)), ("top_logprobs", pa.list_(FLOATS))]
STATS: Columns = [("ranks", INTS), ("entropies", FLOATS)]
DIVERGENCE: Columns = [("kls", FLOATS), ("delta_ps", FLOATS), ("agreements", FLAGS), ("reference_logprobs", FLOATS)]
COUNTS: Columns = [("bytes", pa.int64()), ("scored_bytes", pa.int64()), ("words", pa.int64()), ("chars", pa.int64())]
CHOICES: Columns = [
    ("prompt_tokens", pa.int32()),
    ("choice_token_ids", pa.list_(INTS)),
    ("choice_token_logprobs", pa.list_(FLOATS)),
    ("choice_logprobs", pa.list_(pa.float64())),
    ("choice_tokens", INTS),
    ("choice_bytes", INTS),
    ("choice_chars", INTS),
    ("choice_is_greedy", FLAGS),
    ("prediction", pa.int32()),
    ("label", pa.int32()),
    ("correct", pa.bool_()),
    ("truncated", pa.bool_()),
]


def text_columns(kind: str, *, top: bool, stats: bool, reference: bool) -> Columns:
    """Returns the columns of a text, completion or messages job, after those that every record has."""
    return [
        *[("token_ids", INTS), ("token_logprobs", FLOATS), ("text_offset", INTS)],
        *([("scored", FLAGS)] if kind != "text" else []),
        *(TOP if top else []),
        *(STATS if stats else []),
        *(DIVERGENCE if reference else []),
        *[("sum_logprob", pa.float64()), ("scored_tokens", pa.int32())],
        *COUNTS,
        ("truncated", pa.bool_()),
        *([("is_greedy", pa.bool_())] if kind == "completion" else []),
    ]


def text_record(request: TextRequest, outcome: Scored) -> dict[str, Any]:
    """Returns a scored text as a value for each column that a config can ask for; null where a token is not scored."""
    tokens = request.tokens
    scored = tokens.scored
    scores = logprobs.join_scores(list(outcome.scores)) if outcome.scores else None
    divergences = divergence.join_divergences(list(outcome.divergences)) if outcome.divergences else None
    record: dict[str, Any] = {
        "token_ids": tokens.ids,
        "token_logprobs": _masked(scores, "logprobs", scored, FLOATS),
        "text_offset": tokens.offsets,
        "scored": scored,
        "sum_logprob": None if scores is None else exact_sum(scores.logprobs),
        "scored_tokens": int(np.count_nonzero(scored)),
        "bytes": tokens.bytes,
        "scored_bytes": tokens.scored_bytes,
        "words": tokens.words,
        "chars": tokens.chars,
        "truncated": tokens.truncated,
        "is_greedy": None if scores is None or scores.greedy is None else bool(scores.greedy.all()),
    }
    record |= {name: _masked(scores, name, scored, type_) for name, type_ in (*TOP, *STATS)}
    return record | {name: _masked(divergences, name, scored, type_) for name, type_ in DIVERGENCE}


def choices_record(request: ChoicesRequest, outcome: Scored) -> dict[str, Any]:
    """Returns scored choices by column. The prediction is the choice with the largest sum, of equals the first."""
    sums = [exact_sum(scores.logprobs) for scores in outcome.scores]
    prediction = int(np.argmax(sums))
    return {
        "prompt_tokens": request.prompt_tokens,
        "choice_token_ids": request.choice_ids,
        "choice_token_logprobs": [scores.logprobs for scores in outcome.scores],
        "choice_logprobs": np.array(sums),
        "choice_tokens": np.array([len(scores.logprobs) for scores in outcome.scores], np.int32),
        "choice_bytes": np.array([len(choice.encode()) for choice in request.choices], np.int32),
        "choice_chars": np.array([len(choice) for choice in request.choices], np.int32),
        "choice_is_greedy": np.array([bool(np.all(scores.greedy)) for scores in outcome.scores]),
        "prediction": prediction,
        "label": request.label,
        "correct": None if request.label is None else prediction == request.label,
        "truncated": request.truncated,
    }


def exact_sum(values: NDArray[np.float32]) -> float:
    """Returns Σ of the stored float32 values, exactly rounded in float64."""
    return math.fsum(values.astype(np.float64))


def _masked(figures: object, name: str, scored: NDArray[np.bool_], type_: pa.DataType) -> Masked:
    """Returns the figures ``name`` at the scored tokens; all null where none are scored, or none were computed."""
    values: NDArray[Any] | None = getattr(figures, name, None)
    if values is None:
        shape = (0, 0) if pa.types.is_list(type_.value_type) else (0,)
        return Masked(np.zeros(shape), np.zeros(len(scored), np.bool_))
    return Masked(values, scored)
