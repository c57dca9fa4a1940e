"""The columns of a completion's record, as far as a config fills them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...configs.schema import GenerateConfig
from ...runner.core.arrays import Ids
from ...runner.core.images import FIRST_IMAGE_ID
from ...runner.store.arrow_builder import LEADING_NULL, Masked

FLOATS, INTS = pa.list_(pa.float32()), pa.list_(pa.int32())
TOOL_CALLS = pa.list_(pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.large_string())]))


@dataclass(slots=True, frozen=True)
class AnswerColumns:
    """Which columns hold the parts of a completion.

    reasoning: the model's reasoning can be told from its answer. forced: its end may be forced. tools: calls of tools are read.
    grammar: completions may be held to a grammar.
    """

    reasoning: bool = False
    forced: bool = False
    tools: bool = False
    grammar: bool = False


def completion_fields(config: GenerateConfig, kept: pa.StructType | None, differs: bool, parts: AnswerColumns) -> list[pa.Field]:
    """Returns the columns of a completion.

    kept: type of the ``input`` struct, None without one. differs: the distribution sampled from can differ from the model's own.
    parts: those that are columns of their own.
    """
    logprobs = config.logprobs
    fields: list[tuple[str, pa.DataType]] = [("row", pa.int64()), ("key", pa.string())]
    fields += [("input", kept)] if kept is not None else []
    fields += [("sample", pa.int32()), ("prompt", pa.large_string()), ("completion", pa.large_string())]
    fields += _parts(config, parts)
    fields += [("finish_reason", pa.string()), ("stop_reason", pa.string()), ("truncated", pa.bool_())]
    fields += [("grammar_complete", pa.bool_())] if parts.grammar else []
    fields += [("prompt_tokens", pa.int32()), ("completion_tokens", pa.int32()), ("prompt_ids", INTS), ("completion_ids", INTS)]
    if logprobs.tokens:
        fields += [("logprobs", FLOATS)]
    if differs:
        fields += [("sampled_logprobs", FLOATS)]
    fields += _figures("", logprobs.top, logprobs.stats) if logprobs.tokens else []
    fields += [("text_offset", INTS), ("prompt_text_offset", INTS)]
    fields += [("cumulative_logprob", pa.float64()), ("seed", pa.uint64())]
    echo = [("prompt_logprobs", FLOATS), *_figures("prompt_", logprobs.top, logprobs.stats)] if logprobs.prompt else []
    return [*(pa.field(*f) for f in fields), *(pa.field(*f, metadata=LEADING_NULL) for f in echo)]


def echoed(ids: Ids, figures: NDArray[Any] | None) -> NDArray[Any] | Masked | None:
    """Returns figures [T - 1, …] of a prompt's tokens after the first, for a column of the echo: null at a picture's tokens. ids: [T]."""
    words = ids < FIRST_IMAGE_ID
    if figures is None or words.all():
        return figures
    there = np.concatenate([[False], words[1:]])
    return Masked(figures[there[1:]], there)


def _parts(config: GenerateConfig, parts: AnswerColumns) -> list[tuple[str, pa.DataType]]:
    fields: list[tuple[str, pa.DataType]] = []
    if parts.reasoning:
        fields += [] if config.reasoning.strip else [("reasoning", pa.large_string())]
        fields += [("reasoning_tokens", pa.int32())]
    if parts.forced:
        fields += [("reasoning_forced", pa.bool_())]
    if parts.reasoning or parts.tools:
        fields += [("content", pa.large_string())]
    if parts.tools:
        fields += [("tool_calls", TOOL_CALLS), ("tool_error", pa.string())]
    return fields


def _figures(prefix: str, top: int, stats: bool) -> list[tuple[str, pa.DataType]]:
    fields: list[tuple[str, pa.DataType]] = []
    if top:
        fields += [(f"{prefix}top_ids", pa.list_(INTS)), (f"{prefix}top_logprobs", pa.list_(FLOATS))]
    if stats:
        fields += [(f"{prefix}ranks", INTS), (f"{prefix}entropies", FLOATS)]
    return fields
