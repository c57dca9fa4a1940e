"""What an evaluation would have to do: requests by task and kind, their tokens, what is done already, and how long the rest takes.

The requests are lm-eval's own. Of a task with many of them some are tokenized, at even distances, and the sums scaled up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from ...configs.eval import EvalConfig
from ...runner.core.errors import RunDirError
from ...runner.runs.drift import KeyDrift, identity_drift, inputs_drift
from ...runner.runs.run_files import stored_run
from ...runner.runs.status import run_status
from .evaluation import build_requests, model_args
from .request_list import EvalRequest, RequestList
from .run import eval_identity

_TOKENIZED = 1000  # requests of a task; more are scaled up from these
_CHUNK, _CHUNKS, _SECONDS = 32, 8, 8.0  # of one kind of request, in a trial


@dataclass(slots=True)
class TaskForecast:
    """The requests of one task, all of one kind. tokens: fed to the model, as if each request were alone. scored: get a logprob.

    generated: the most that can be generated. counted: how many requests were tokenized, of which the sums are scaled up.
    """

    task: str
    kind: str
    documents: int
    requests: int
    tokens: int = 0
    scored: int = 0
    generated: int = 0
    counted: int = 0


@dataclass(slots=True)
class EvalForecast:
    """The forecast of an evaluation. done: requests that have their answers; differences: why a run there would be refused.

    seconds: for the requests that are left, by a trial; None without one. tried: requests of the trial.
    """

    config: EvalConfig
    tasks: list[TaskForecast] = field(default_factory=list[TaskForecast])
    done: int = 0
    is_complete: bool = False
    differences: list[KeyDrift] = field(default_factory=list[KeyDrift])
    seconds: float | None = None
    tried: int = 0

    @property
    def requests(self) -> int:
        """Requests of all tasks."""
        return sum(task.requests for task in self.tasks)


def forecast_eval(config: EvalConfig, trial: bool) -> EvalForecast:
    """Builds the requests and counts them; with ``trial`` loads the model and answers some. Raises as ``run_evaluation``."""
    requests, lm = build_requests(config)
    found = EvalForecast(config, [_count(lm, requests, first, source) for first, source in _starts(requests)])
    _look_up(found, requests, lm)
    if trial and found.done < found.requests:
        _try(found, requests)
    return found


def _starts(requests: RequestList) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns the first row of each task that has requests, with what run.json says of it."""
    starts, row = list[tuple[int, Mapping[str, Any]]](), 0
    for source in requests.sources:
        if source["rows"]:
            starts.append((row, source))
        row += source["rows"]
    return starts


def _count(lm: Any, requests: RequestList, first: int, source: Mapping[str, Any]) -> TaskForecast:
    rows = range(first, first + source["rows"])
    documents = {requests.at(row).doc_id for row in rows}
    some = [requests.at(row) for row in rows[:: -(-len(rows) // _TOKENIZED)]]
    found = TaskForecast(source["path"], some[0].kind, len(documents), len(rows), counted=len(some))
    scale = len(rows) / len(some)
    lengths: dict[str, int] = {}

    def length(text: str) -> int:
        if text not in lengths:
            lengths[text] = len(lm.tok_encode(text)) if text else 0
        return lengths[text]

    for request in some:
        tokens, scored, generated = _tokens(lm, request, length)
        found.tokens, found.scored, found.generated = found.tokens + tokens, found.scored + scored, found.generated + generated
    found.tokens, found.scored, found.generated = (round(sum_ * scale) for sum_ in (found.tokens, found.scored, found.generated))
    return found


def _tokens(lm: Any, request: EvalRequest, length: Any) -> tuple[int, int, int]:
    """Returns the tokens of a request that are fed, scored and at most generated; length: tokens of a text."""
    if request.generation_kwargs is not None:
        limits = [request.generation_kwargs.get(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")]
        most = next((int(limit) for limit in limits if limit is not None), lm.max_gen_toks)
        return min(length(request.prompt), max(1, lm.max_length - most)), 0, most
    whole = length(request.prompt + (request.continuation or ""))
    if not request.prompt:
        return whole, whole, 0
    # Trailing whitespace of the context is the continuation's, as lm-eval divides them.
    return min(whole, lm.max_length), whole - min(whole, length(request.prompt.rstrip())), 0


def _look_up(found: EvalForecast, requests: RequestList, lm: Any) -> None:
    """Finds what the run directory holds already, or why it would refuse the run."""
    folder = Path(found.config.output.path)
    try:
        stored = stored_run(folder)
    except RunDirError:
        return  # there is none yet
    found.differences = identity_drift(stored["identity"], eval_identity(found.config, lm.eval_model))
    found.differences += inputs_drift(stored["inputs"], requests.inputs)
    if not found.differences:
        status = run_status(folder)
        found.done = min(status.rows, found.requests)
        found.is_complete = status.state == "complete" and found.done == found.requests


def _try(found: EvalForecast, requests: RequestList) -> None:
    """Answers some requests of each kind, in chunks of consecutive ones at even distances, and times them."""
    from ..harness import BulkLM

    model: Any = BulkLM
    loaded = model(**model_args(found.config))
    seconds = 0.0
    for kind in dict.fromkeys(task.kind for task in found.tasks):
        rows = [row for first, source in _starts(requests) for row in range(first, first + source["rows"]) if requests.at(row).kind == kind]
        tried, spent = _timed(getattr(loaded, kind), requests, rows)
        found.tried += tried
        seconds += spent / tried * len(rows)
    found.seconds = seconds * (1 - found.done / found.requests)


def _timed(answer: Any, requests: RequestList, rows: Sequence[int]) -> tuple[int, float]:
    """Returns how many requests were answered, and in how many seconds; the first few, which compile kernels, do not count."""
    answer([requests.instance(row) for row in rows[:2]], disable_tqdm=True)
    chunks = min(_CHUNKS, -(-len(rows) // _CHUNK))
    tried, start = 0, monotonic()
    for number in range(chunks):
        at = number * max(0, len(rows) - _CHUNK) // max(1, chunks - 1)
        some = rows[at : at + _CHUNK]
        answer([requests.instance(row) for row in some], disable_tqdm=True)
        tried += len(some)
        if monotonic() - start > _SECONDS:
            break
    return tried, monotonic() - start
