"""Writes the rows of completions or embeddings as the lines of an OpenAI Batch output file, in input order: a response or error each.

https://platform.openai.com/docs/guides/batch: ``id``, ``custom_id``, ``response`` (``status_code``, ``request_id``, ``body``),
``error``. A request that is refused has a response too, with the status and the error of HTTP. Ids are made of the run's identity
and the row, so the same run gives the same bytes.
"""

import heapq
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.schema import GenerateConfig, JobConfig
from ...runner.files.checked_json import digest
from ...runner.files.checked_lines import read_lines
from ...runner.store.commit_log import read_commits
from ...runner.store.paths import RunPaths
from ...runner.store.results import read_errors, read_results
from .openai_bodies import AnswerBodies, embedding_body, request_of
from .openai_logprobs import Json, Spelled
from .openai_refusals import refusal_of

_ALWAYS = ("row", "key", "sample", "prompt", "completion", "finish_reason", "prompt_tokens", "completion_tokens")
_WHERE_THERE = ("content", "reasoning", "reasoning_tokens", "tool_calls", "request")
_PER_TOKEN = ("completion_ids", "logprobs", "text_offset", "top_ids", "top_logprobs")
_PER_PROMPT_TOKEN = ("prompt_ids", "prompt_logprobs", "prompt_text_offset", "prompt_top_ids", "prompt_top_logprobs")
_EMBEDDING = ("row", "key", "embedding", "tokens", "request")
_ERRORS = ["row", "key", "sample", "stage", "error", "message", "input"]


@dataclass(slots=True, frozen=True)
class BatchLine:
    """A line of JSON. answered: it holds an answer, as a Batch's output file does; else it is of the error file."""

    text: str
    answered: bool


def openai_lines(run: Path, stored: Json, config: JobConfig, spell: Spelled | None) -> Iterator[BatchLine]:
    """Yields a line for each finished or failed row of the run directory ``run``; ``stored`` is its run.json.

    ``spell`` gives a token's text; None where the lines hold no logprobs (see ``needs_tokens``).
    """
    shape = _Shape(run, stored, config, spell)
    results = _records(read_results(run, shape.columns))
    errors = _records(read_errors(run, _ERRORS))
    merged = heapq.merge(results, errors, key=itemgetter("row"))
    for row, values in groupby(merged, key=itemgetter("row")):
        group = list(values)
        records, failures = ([one for one in group if ("stage" in one) == failed] for failed in (False, True))
        text = json.dumps(shape.line(row, records, failures), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        yield BatchLine(text, bool(records))


def needs_tokens(config: JobConfig, columns: Iterable[str]) -> bool:
    """Returns whether the lines hold logprobs, by the records' ``columns``; of chats, those of the prompt have no place in them."""
    chat = config.data.format != "openai" and config.prompt.text is None
    return "logprobs" in columns or ("prompt_logprobs" in columns and not chat)


def record_columns(run: Path) -> list[str]:
    """Returns the columns of a run's records; none where it has no records."""
    paths = RunPaths(run)
    if not any(commit.records for commit in read_commits(paths).commits.values()):
        return []
    return next(read_results(run)).schema.names


class _Shape:
    """The settings that all lines of a run share."""

    def __init__(self, run: Path, stored: Json, config: JobConfig, spell: Spelled | None):
        self._config = config
        self._fingerprint = digest(stored["identity"])
        self._of_batch_file = config.data.format == "openai"
        there = set(record_columns(run))
        self._bodies: AnswerBodies | None = None
        if not isinstance(config, GenerateConfig):
            self.columns = [name for name in _EMBEDDING if name in there]
            return
        self._bodies = AnswerBodies(config, self._fingerprint, _created(RunPaths(run)), spell)
        optional = [*_WHERE_THERE, *([*_PER_TOKEN, *_PER_PROMPT_TOKEN] if spell is not None else [])]
        self.columns = [*_ALWAYS, *(name for name in optional if name in there)]

    def line(self, row: int, records: list[Json], failures: list[Json]) -> Json:
        """Returns a row's line. Where only some samples failed, it has both a response with the others and an error."""
        unnamed = None if self._of_batch_file else f"row-{row}"
        key = next((one["key"] for one in (*records, *failures) if one["key"] is not None), unnamed)
        name = f"{self._fingerprint[:16]}-{row}"
        line: Json = {"id": f"batch_req_{name}", "custom_id": key, "response": None, "error": None}
        if records:
            line["response"] = self._response(name, 200, self._body(name, records))
            line["error"] = _error(failures)
            return line
        refusal = refusal_of(failures[0])
        if refusal.status is None:
            line["error"] = {"code": refusal.code, "message": refusal.message}
        else:
            line["response"] = self._response(name, refusal.status, {"error": refusal.error})
        return line

    def _body(self, name: str, records: list[Json]) -> Json:
        if self._bodies is None:
            return embedding_body(records[0], self._config.model.path)
        return self._bodies.body(name, records, request_of(records[0], self._bodies.config))

    @staticmethod
    def _response(name: str, status: int, body: Json) -> Json:
        return {"status_code": status, "request_id": f"req_{name}", "body": body}


def _error(failures: list[Json]) -> Json | None:
    if not failures:
        return None
    first, samples = failures[0], [str(failure["sample"]) for failure in failures if failure["sample"] is not None]
    which = f"sample {', '.join(samples)}: " if samples else ""
    return {"code": first["stage"], "message": which + first["message"]}


def _created(paths: RunPaths) -> int:
    """Returns when the run began, in seconds since 1970: by its first session, else by its folder."""
    starts = [line["time"] for line in read_lines(paths.sessions) if line.get("event") == "start"]
    return int(datetime.fromisoformat(starts[0]).timestamp() if starts else paths.run.stat().st_mtime)


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yields the batches' records, converted a few at a time: one with logprobs takes some megabytes as Python objects."""
    for batch in batches:
        for start in range(0, batch.num_rows, 16):
            yield from batch.slice(start, 16).to_pylist()
