"""Computes the statistics of completions: one row of sums and counts, and the perplexities. They follow from the records alone."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...runner.store.results import read_results
from .standard_errors import list_sum, perplexity

COUNTS = (
    "rows",  # with at least one record
    "records",
    "prompt_tokens",  # counted once a row, however many samples it has
    "completion_tokens",
    "stopped",
    "at_max_tokens",
    "at_context",  # ended because the context was full
    "clipped",  # prompts that left less than max_tokens of the context
    "minus_infinity",  # stored logprobs of tokens that the model gives no chance
    "prompt_scored",  # prompt tokens with a logprob
)


def completion_statistics(run: Path, context: int | None, max_tokens: int | None) -> pa.Table:
    """Returns the statistics of a run directory's records. ``max_tokens`` is the config's, None where rows have their own.

    Where completions may be held to a grammar, those that are a whole text of it are counted, and those that are not.
    Logprobs are summed in float64 over the stored float32, in input order; a prompt counts once however many samples it has.
    """
    count: dict[str, int] = dict.fromkeys(COUNTS, 0)
    completion: list[float] = []
    prompt: list[float] = []
    before, echo = -1, False
    for batch in read_results(run):
        rows, prompts, completions = (batch.column(name).to_numpy() for name in ("row", "prompt_tokens", "completion_tokens"))
        first = np.diff(rows, prepend=before) != 0
        before = int(rows[-1]) if len(rows) else before
        by_length = np.array(batch.column("finish_reason").to_pylist(), object) == "length"
        full = by_length & (prompts + completions == (context or -1))
        count["rows"] += int(first.sum())
        count["records"] += batch.num_rows
        count["prompt_tokens"] += int(prompts[first].sum())
        count["completion_tokens"] += int(completions.sum())
        if "grammar_complete" in batch.schema.names:
            whole: pa.BooleanArray = batch.column("grammar_complete")
            count["grammar_complete"] = count.get("grammar_complete", 0) + whole.true_count
            count["grammar_incomplete"] = count.get("grammar_incomplete", 0) + whole.false_count
        count["stopped"] += int((~by_length).sum())
        count["at_max_tokens"] += int((by_length & ~full).sum())
        count["at_context"] += int(full.sum())
        count["clipped"] += int((prompts[first] + max_tokens > context).sum()) if max_tokens and context else 0
        completion.append(math.fsum(batch.column("cumulative_logprob").to_pylist()))
        if "logprobs" in batch.schema.names:
            count["minus_infinity"] += _impossible(batch.column("logprobs"))
        if echo := "prompt_logprobs" in batch.schema.names:
            of_rows = batch.column("prompt_logprobs").filter(pa.array(first))
            total, scored = list_sum(of_rows)
            prompt.append(total)
            count["prompt_scored"] += scored
            count["minus_infinity"] += _impossible(of_rows)
    return _table(count, math.fsum(completion), math.fsum(prompt) if echo else None, clipped=bool(max_tokens and context))


def _impossible(lists: pa.Array) -> int:
    return int(np.isneginf(lists.flatten().drop_null().to_numpy()).sum())


def _table(count: dict[str, int], completion: float, prompt: float | None, *, clipped: bool) -> pa.Table:
    row: dict[str, Any] = {"group": "all", **count, "sum_logprob": completion}
    if not clipped:
        row["clipped"] = None
    row["completion_perplexity"] = perplexity(completion, count["completion_tokens"])
    row["prompt_sum_logprob"] = prompt
    row["prompt_perplexity"] = None if prompt is None else perplexity(prompt, count["prompt_scored"])
    types = {"group": pa.string(), **dict.fromkeys(count, pa.int64())}
    return pa.table({name: pa.array([value], types.get(name, pa.float64())) for name, value in row.items()})
