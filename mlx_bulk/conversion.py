"""Turns the records of a job into the results that a ``Model`` returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mlx_bulk.memory_run import Record
from mlx_bulk.records import ClassifyResult, Completion, GenerateResult, RecordError, ScoreResult
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.store.arrow_builder import Masked
from numpy.typing import DTypeLike, NDArray

_NO_IDS = np.zeros(0, np.int32)


def generate_result(text: str, records: Sequence[Record], failure: Failure | None) -> GenerateResult:
    """Returns a prompt's result; ``text`` is what was given, for a prompt that has no record."""
    error = _error(failure)
    if not records:
        return GenerateResult(prompt=text, prompt_ids=_NO_IDS, prompt_text_offset=_NO_IDS, outputs=(), error=error)
    first = records[0]
    return GenerateResult(
        prompt=first["prompt"],
        prompt_ids=first["prompt_ids"],
        prompt_text_offset=first["prompt_text_offset"],
        outputs=tuple(map(_completion, records)),
        error=error,
        prompt_logprobs=_after_first(first.get("prompt_logprobs"), np.nan),
        prompt_top_ids=_after_first(first.get("prompt_top_ids"), -1),
        prompt_top_logprobs=_after_first(first.get("prompt_top_logprobs"), np.nan),
        prompt_ranks=_after_first(first.get("prompt_ranks"), 0),
        prompt_entropies=_after_first(first.get("prompt_entropies"), np.nan),
    )


def _completion(record: Record) -> Completion:
    return Completion(
        index=record["sample"],
        text=record["completion"],
        ids=record["completion_ids"],
        logprobs=record["logprobs"],
        cumulative_logprob=record["cumulative_logprob"],
        sampled_logprobs=record.get("sampled_logprobs"),
        text_offset=record["text_offset"],
        finish_reason=record["finish_reason"],
        stop_reason=record["stop_reason"],
        grammar_complete=record.get("grammar_complete"),
        seed=record["seed"],
        top_ids=record.get("top_ids"),
        top_logprobs=record.get("top_logprobs"),
        ranks=record.get("ranks"),
        entropies=record.get("entropies"),
        reasoning=record.get("reasoning"),
        content=record.get("content"),
    )


def score_result(text: str, records: Sequence[Record], failure: Failure | None) -> ScoreResult:
    """Returns a text's result; one that could not be scored has no tokens."""
    if not records:
        none: dict[str, Any] = {"ids": _NO_IDS, "logprobs": np.zeros(0, np.float32), "text_offset": _NO_IDS, "sum_logprob": None}
        none |= dict.fromkeys(("scored_tokens", "bytes", "scored_bytes", "words", "chars"), 0)
        return ScoreResult(text=text, truncated=False, error=_error(failure), **none)
    record = records[0]
    return ScoreResult(
        text=text,
        ids=record["token_ids"],
        logprobs=_filled(record["token_logprobs"], np.nan, np.float32),
        text_offset=record["text_offset"],
        **{name: record[name] for name in ("sum_logprob", "scored_tokens", "bytes", "scored_bytes", "words", "chars", "truncated")},
        top_ids=_filled(record.get("top_ids"), -1, np.int32),
        top_logprobs=_filled(record.get("top_logprobs"), np.nan, np.float32),
        ranks=_filled(record.get("ranks"), 0, np.int32),
        entropies=_filled(record.get("entropies"), np.nan, np.float32),
    )


def classify_result(records: Sequence[Record], failure: Failure | None) -> ClassifyResult:
    """Returns an input's result; one that could not be done has no logits."""
    if not records:
        none = np.zeros(0, np.float32)
        return ClassifyResult(logits=none, label=None, score=None, tokens=0, truncated=False, error=_error(failure))
    record = records[0]
    return ClassifyResult(
        logits=record["logits"],
        label=record.get("label"),
        score=float(record["score"]),
        tokens=record["tokens"],
        truncated=record["truncated"],
    )


def _error(failure: Failure | None) -> RecordError | None:
    return None if failure is None else RecordError(failure.stage, failure.error, failure.message)


def _after_first(values: NDArray[Any] | Masked | None, fill: float) -> Any:
    """Returns [T, …] with ``fill`` for the first token, before which nothing stands, and for pictures' tokens, from [T - 1, …]."""
    if isinstance(values, Masked):
        return _filled(values, fill, values.values.dtype)
    return None if values is None else np.concatenate([np.full((1, *values.shape[1:]), fill, values.dtype), values])


def _filled(column: Masked | None, fill: float, dtype: DTypeLike) -> Any:
    """Returns [T, …] with ``fill`` for tokens that are not scored."""
    if column is None:
        return None
    values = np.full((len(column.there), *column.values.shape[1:]), fill, dtype)
    values[column.there] = column.values
    return values
