"""Picks documents of an evaluation's tasks at random, with all their requests and answers, as the page's sample browser reads them.

Metrics and targets come from samples_TASK.jsonl, where the run has them. All text is data.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from ...runner.store.results import read_results
from ..terminal.tables import shorten

Json = dict[str, Any]
_Document = tuple[str, int, int]  # task, doc_id, repeat

_DOCUMENTS = 160  # of all tasks, and at least two of each
_BYTES = 1_600_000  # of all samples as JSON: the page stays under 3 MB
_TEXT = 4_000  # characters of a prompt or of a text


@dataclass(slots=True)
class EvalSamples:
    """The picked documents as JSON, task by task. documents: how many each task has, by its name."""

    records: list[Json] = field(default_factory=list[Json])
    documents: dict[str, int] = field(default_factory=dict[str, int])


def eval_samples(run: Path) -> EvalSamples:
    """Picks documents of each task. Raises RunDirError where a committed part is missing or damaged."""
    picked = _picked(run)
    most = max(2, _DOCUMENTS // max(1, len(picked)))
    wanted = {document for documents in picked.values() for _, document in sorted(documents)[:most]}
    requests: dict[_Document, list[Json]] = {}
    for batch in read_results(run):
        for values in batch.to_pylist():
            if (document := _document(values)) in wanted:
                requests.setdefault(document, []).append(values)
    found, room = EvalSamples(documents={task: len(documents) for task, documents in picked.items()}), _BYTES
    for task in picked:
        mine = {document: values for document, values in requests.items() if document[0] == task}
        metrics = _metrics(run, task, {doc_id for _, doc_id, _ in mine})
        for document, values in sorted(mine.items()):
            record = _record(document, values, metrics.get(document[1], {}))
            if (room := room - len(json.dumps(record))) < 0:
                return found
            found.records.append(record)
    return found


def _picked(run: Path) -> dict[str, set[tuple[int, _Document]]]:
    """Returns all documents of each task, each behind a number by which they are in no order."""
    documents: dict[str, set[tuple[int, _Document]]] = {}
    for batch in read_results(run, ["task", "doc_id", "repeat"]):
        for values in batch.to_pylist():
            document = _document(values)
            documents.setdefault(values["task"], set()).add((crc32(repr(document).encode()), document))
    return documents


def _document(values: Json) -> _Document:
    return values["task"], values["doc_id"], values["repeat"]


def _record(document: _Document, requests: list[Json], sample: Mapping[str, Any]) -> Json:
    task, doc_id, repeat = document
    requests = sorted(requests, key=lambda values: values["idx"])
    name = f"{task} · document {doc_id:,}" + (f" · repeat {repeat}" if repeat else "")
    facts = [["request", requests[0]["request_type"]], ["tokens", f"{sum(values['tokens'] for values in requests):,}"]]
    facts += [[metric, f"{sample[metric]:.4g}"] for metric in sample.get("metrics", ()) if isinstance(sample.get(metric), int | float)]
    record: Json = {"name": name, "tags": [task], "parts": list(_parts(requests)), "facts": facts}
    if "target" in sample:
        facts.append(["target", shorten(str(sample["target"]), 200)])
    if "doc" in sample:
        record["input"] = _cut(json.dumps(sample["doc"], ensure_ascii=False, indent=1, default=str))
    return record


def _parts(requests: list[Json]) -> Iterator[Json]:
    """Yields the prompt where all requests have the same one, then each answer."""
    prompts = {values["prompt"] for values in requests}
    if len(prompts) == 1 and requests[0]["prompt"]:
        yield {"name": "prompt", "text": _cut(requests[0]["prompt"])}
    sums = [values["logprob"] for values in requests if values["logprob"] is not None]
    for number, values in enumerate(requests):
        own = "" if len(prompts) == 1 else values["prompt"]
        if values["text"] is not None:
            yield {"name": "generated", "text": _cut(own + values["text"])}
            continue
        marks = [f"logprob {values['logprob']:.3f}"]
        marks += ["greedy"] if values["is_greedy"] else []
        marks += ["the likeliest"] if len(sums) > 1 and values["logprob"] == max(sums) else []
        heading = "text" if values["is_greedy"] is None else "continuation" if len(requests) == 1 else f"continuation {number}"
        yield {"name": heading, "note": " · ".join(marks), "text": _cut(own + (values["continuation"] or ""))}


def _metrics(run: Path, task: str, doc_ids: set[int]) -> dict[int, Json]:
    """Reads these documents' metrics and targets, of the first filter that names them. A file that cannot be read has none."""
    found: dict[int, Json] = {}
    try:
        with (run / f"samples_{task.replace('/', '__')}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                values = json.loads(line)
                if values["doc_id"] in doc_ids:
                    found.setdefault(values["doc_id"], values)
    except (OSError, ValueError, KeyError, TypeError):
        return found
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} … ({len(text):,} characters)"
