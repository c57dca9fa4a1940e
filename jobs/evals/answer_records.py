"""The answers of an evaluation as records of a run: their columns, a record made of an outcome, and an answer read back from one.

An answer is what lm-eval gets: (logprob, is_greedy), a logprob, or a text. A request that failed answers NaN, or no text.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.errors import BulkError
from ...runner.core.errors import DriftError
from ...runner.core.outcomes import Failure, Generated, Outcome, Scored
from ...runner.store.results import finished_errors, finished_results
from .request_list import EvalRequest, RequestList

Answer = tuple[float, bool] | float | str

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("task", pa.string()),
        ("doc_id", pa.int64()),
        ("idx", pa.int32()),
        ("repeat", pa.int32()),
        ("request_type", pa.string()),
        ("prompt", pa.string()),
        ("continuation", pa.string()),
        ("generation_kwargs", pa.string()),
        ("tokens", pa.int32()),
        ("logprob", pa.float64()),
        ("is_greedy", pa.bool_()),
        ("text", pa.string()),
    ]
)


def answer_record(request: EvalRequest, outcome: Outcome, answer: Any) -> dict[str, Any]:
    """Returns the columns of an answer. tokens: those that were scored, or generated."""
    record: dict[str, Any] = {
        "task": request.task,
        "doc_id": request.doc_id,
        "idx": request.idx,
        "repeat": request.repeat,
        "request_type": request.kind,
        "prompt": request.prompt,
        "continuation": request.continuation,
        "generation_kwargs": None if request.generation_kwargs is None else json.dumps(request.generation_kwargs, default=str),
        "tokens": len(outcome.ids) if isinstance(outcome, Generated) else 0,
    }
    if isinstance(outcome, Scored):
        record["tokens"] = sum(len(part.logprobs) for part in outcome.scores)
    match answer:
        case str():
            record["text"] = answer.encode("utf-8", "backslashreplace").decode()
        case (logprob, greedy):
            record |= {"logprob": logprob, "is_greedy": greedy}
        case _:
            record["logprob"] = answer
    return record


def answer_failure(position: int, request: EvalRequest, failure: Failure) -> Failure:
    """Returns the failure of the request in row ``position``, as errors/ holds it."""
    return replace(failure, row=position, sample=None, key=f"{request.task}/{request.doc_id}")


def require_same_places(run: Path, requests: RequestList) -> None:
    """Raises DriftError where an answer in the run directory is not to the document whose request is in its row now."""
    for batch in finished_results(run, sound=True):
        columns = [batch.column(name).to_pylist() for name in ("row", "task", "doc_id", "idx", "repeat")]
        for row, *place in zip(*columns, strict=True):
            now = requests.at(row) if row < requests.rows else None
            if now is None or [now.task, now.doc_id, now.idx, now.repeat] != place:
                has = "no request" if now is None else f"document {now.doc_id} of {now.task}"
                raise DriftError(
                    f"{run}: cannot adopt this: row {row} holds an answer to document {place[1]} of {place[0]}, where the tasks now have "
                    f"{has}. Go back to what the run has, choose another --output, or start over with --overwrite."
                )


def kept_answers(run: Path, kinds: list[str]) -> dict[int, Answer]:
    """Reads all answers that the run directory holds, committed or in a journal, by row. kinds: the request type of each row."""
    answers: dict[int, Answer] = {}
    for batch in finished_results(run):
        columns = [batch.column(name).to_pylist() for name in ("row", "request_type", "logprob", "is_greedy", "text")]
        for row, kind, logprob, greedy, text in zip(*columns, strict=True):
            if kind != kinds[row]:
                raise BulkError(f"{run}: row {row} holds an answer of a {kind} request, and the tasks ask for {kinds[row]} there")
            answers[row] = text if kind == "generate_until" else logprob if kind == "loglikelihood_rolling" else (logprob, greedy)
    for row in _failed(run):
        answers[row] = "" if kinds[row] == "generate_until" else math.nan if kinds[row] == "loglikelihood_rolling" else (math.nan, False)
    return answers


def _failed(run: Path) -> Iterator[int]:
    for batch in finished_errors(run):
        yield from batch.column("row").to_pylist()
