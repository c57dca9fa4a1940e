"""Writes a generation run's rows as the lines of an OpenAI Batch output file, in input order: a response or an error a row.

https://platform.openai.com/docs/guides/batch: ``id``, ``custom_id``, ``response`` (``status_code``, ``request_id``, ``body``),
``error``. Ids are made of the run's identity and the row, so the same run gives the same bytes.
"""

import heapq
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.schema import GenerateConfig
from ...runner.files.checked_json import digest
from ...runner.files.checked_lines import read_lines
from ...runner.store.paths import RunPaths
from ...runner.store.results import read_errors, read_results
from .openai_logprobs import Json, Spelled, chat_logprobs, completion_logprobs

_ALWAYS = ["row", "key", "sample", "prompt", "completion", "finish_reason", "prompt_tokens", "completion_tokens"]
_PER_TOKEN = {"completion_ids", "logprobs", "text_offset", "top_ids", "top_logprobs"}
_PER_PROMPT_TOKEN = {"prompt_ids", "prompt_logprobs", "prompt_text_offset", "prompt_top_ids", "prompt_top_logprobs"}


def openai_lines(run: Path, stored: Json, config: GenerateConfig, spell: Spelled | None) -> Iterator[str]:
    """Yields a line of JSON for each finished or failed row of the run directory ``run``; ``stored`` is its run.json.

    ``spell`` gives a token's text; None where the lines hold no logprobs (see ``needs_tokens``).
    """
    shape = _Shape(run, stored, config, spell)
    results = _records(read_results(run, shape.columns))
    errors = _records(read_errors(run, ["row", "key", "sample", "stage", "message"]))
    merged = heapq.merge(results, errors, key=itemgetter("row"))
    for row, values in groupby(merged, key=itemgetter("row")):
        group = list(values)
        records, failures = ([one for one in group if ("stage" in one) == failed] for failed in (False, True))
        yield json.dumps(shape.line(row, records, failures), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def needs_tokens(config: GenerateConfig) -> bool:
    """Returns whether the lines hold logprobs; those of a prompt have a place in completions alone."""
    return config.logprobs.tokens or (config.logprobs.prompt and not is_chat(config))


def is_chat(config: GenerateConfig) -> bool:
    """Returns whether the prompts were chats."""
    return config.prompt.text is None


class _Shape:
    """The settings that all lines of a run share."""

    def __init__(self, run: Path, stored: Json, config: GenerateConfig, spell: Spelled | None):
        self._config, self._spell = config, spell
        self._chat = is_chat(config)
        self._echo = config.logprobs.prompt and not self._chat
        self._fingerprint = digest(stored["identity"])
        self._created = _created(RunPaths(run))

    @property
    def columns(self) -> list[str]:
        """The columns that the lines need."""
        logprobs = self._config.logprobs
        per_token = (_PER_TOKEN if logprobs.tokens else set[str]()) | (_PER_PROMPT_TOKEN if self._echo else set[str]())
        return [*_ALWAYS, *sorted(name for name in per_token if logprobs.top or "top_" not in name)]

    def line(self, row: int, records: list[Json], failures: list[Json]) -> Json:
        """Returns a row's line. Where only some samples failed, it has both a response with the others and an error."""
        key = next((one["key"] for one in (*records, *failures) if one["key"] is not None), f"row-{row}")
        name = f"{self._fingerprint[:16]}-{row}"
        response = {"status_code": 200, "request_id": f"req_{name}", "body": self._body(name, records)} if records else None
        return {"id": f"batch_req_{name}", "custom_id": key, "response": response, "error": _error(failures)}

    def _body(self, name: str, records: list[Json]) -> Json:
        prompt_tokens = records[0]["prompt_tokens"]
        completion_tokens = sum(record["completion_tokens"] for record in records)
        return {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{name}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._config.model.path,
            "choices": [self._choice(record) for record in records],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
            "system_fingerprint": f"fp_{self._fingerprint[:10]}",
        }

    def _choice(self, record: Json) -> Json:
        choice = {"index": record["sample"], "logprobs": self._logprobs(record), "finish_reason": record["finish_reason"]}
        if self._chat:
            return {**choice, "message": {"role": "assistant", "content": record["completion"], "refusal": None}}
        return {**choice, "text": (record["prompt"] if self._echo else "") + record["completion"]}

    def _logprobs(self, record: Json) -> Json | None:
        if self._spell is None:
            return None
        if self._chat:
            return chat_logprobs(record, self._spell)
        return completion_logprobs(record, self._spell, prompt=self._echo, completion=self._config.logprobs.tokens)


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
