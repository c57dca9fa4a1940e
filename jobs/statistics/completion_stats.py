"""Computes the statistics of completions: one row of sums and counts, and the perplexities. They follow from the records alone."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from ...runner.store.results import read_results
from .standard_errors import list_sum, perplexity

_pc: Any = pyarrow.compute  # its functions come to be when it is imported: a type checker sees none
REQUEST = "request"  # the column of a Batch file's records that holds what an answer repeats of its request, as JSON
_SEVERAL = '"prompts": ([2-9]|1[0-9])'  # in such a record: its row has several prompts

COUNTS = (
    "rows",  # with at least one record
    "records",
    "prompt_tokens",  # of each prompt once, however many samples it has
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
    before, echo = (-1, 0), False
    for batch in read_results(run):
        if not batch.num_rows:
            continue
        rows, prompts, completions = (batch.column(name).to_numpy() for name in ("row", "prompt_tokens", "completion_tokens"))
        numbers = _prompt_numbers(batch)
        new_row = np.diff(rows, prepend=before[0]) != 0
        first = new_row | (np.diff(numbers, prepend=before[1]) != 0)
        before = int(rows[-1]), int(numbers[-1])
        by_length = np.array(batch.column("finish_reason").to_pylist(), object) == "length"
        full = by_length & (prompts + completions == (context or -1))
        count["rows"] += int(new_row.sum())
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


def _prompt_numbers(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Returns for each record which of its row's prompts it continues; 0 but in a Batch file, where a row may have several."""
    numbers = np.zeros(batch.num_rows, np.int64)
    if REQUEST in batch.schema.names:
        several = _pc.fill_null(_pc.match_substring_regex(batch.column(REQUEST), _SEVERAL), False)
        at = np.flatnonzero(several.to_numpy(zero_copy_only=False))
        requests = batch.column(REQUEST).filter(several).dictionary_encode()
        each = np.array([samples_a_prompt(json.loads(text)) for text in requests.dictionary.to_pylist()], np.int64)
        if len(at):
            numbers[at] = batch.column("sample").to_numpy()[at] // each[requests.indices.to_numpy()]
    return numbers


def samples_a_prompt(request: dict[str, Any]) -> int:
    """Returns how many samples each prompt of a row has, by what its records hold of the request. The first prompt's come first."""
    return int(request.get("n", 1)) if request.get("prompts", 1) > 1 else sys.maxsize


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
