"""Audits what an evaluation holds beside its records: its requests are those of run.json, and its result files are as written.

Needs neither lm-eval nor the tasks' data: a task's requests are hashed again from the records.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ...runner.files.checked_json import read_document
from ...runner.files.file_stamp import sha256
from ...runner.runs.audit import Audit, Finding
from ...runner.store.paths import RunPaths
from ...runner.store.results import read_results
from .request_list import EvalRequest

RESULT_FILES = "files"  # of summary.json: sha256 by name
_COLUMNS = ["row", "task", "doc_id", "idx", "repeat", "request_type", "prompt", "continuation", "generation_kwargs"]


def audit_requests(audit: Audit, run_json: dict[str, Any]) -> None:
    """Adds to ``audit`` what is wrong. Records are compared where all of them are committed and sound, and none failed."""
    if not audit.problems and audit.resolved == audit.total and not audit.errors:
        _check_requests(audit, run_json["inputs"]["sources"])
    if audit.closed:
        _check_files(audit)


def _check_requests(audit: Audit, sources: list[dict[str, Any]]) -> None:
    found = {task: (size, digest) for task, size, digest in _tasks(audit)}
    for source in sources:
        if source["rows"] and found.get(source["path"]) != (source["bytes"], source["sha256"]):
            what = f"the requests of {source['path']} in the records are not those that run.json has the hash of"
            cure = "start over with --overwrite, or keep the folder and report it: this is a fault of mlx-bulk's"
            audit.problems.append(Finding(str(RunPaths(audit.run).results), what, cure))


def _tasks(audit: Audit) -> Iterator[tuple[str, int, str]]:
    """Yields name, bytes and sha256 of each task's requests, as ``RequestList`` hashes them."""
    records = (values for batch in read_results(audit.run, _COLUMNS) for values in batch.to_pylist())
    for task, mine in groupby(records, key=lambda values: values["task"]):
        size, digest = 0, hashlib.sha256()
        for request, repeats in _requests(mine):
            content = request.content(repeats)
            size += len(content)
            digest.update(content)
        yield task, size, digest.hexdigest()


def _requests(records: Iterator[dict[str, Any]]) -> Iterator[tuple[EvalRequest, int]]:
    """Yields each request with the number of its repeats, which are records one behind the other."""
    last: EvalRequest | None = None
    repeats = 0
    for values in records:
        if values["repeat"] and last is not None:
            repeats += 1
            continue
        if last is not None:
            yield last, repeats
        settings = None if values["generation_kwargs"] is None else json.loads(values["generation_kwargs"])
        text = values["prompt"], values["continuation"]
        last, repeats = EvalRequest(values["task"], values["doc_id"], values["idx"], 0, values["request_type"], *text, settings), 1
    if last is not None:
        yield last, repeats


def _check_files(audit: Audit) -> None:
    paths = RunPaths(audit.run)
    try:
        written: dict[str, str] = read_document(paths.summary).get(RESULT_FILES, {})
    except (OSError, ValueError):  # the audit itself says what is wrong with summary.json
        written = {}
        if not paths.summary.exists():
            audit.note(paths.summary, "is missing", "it is written anew")
    for name, digest in written.items():
        file = paths.root / name
        if not file.exists():
            audit.note(file, "is missing", "it is written anew")
        elif sha256(file) != digest:
            audit.note(file, "is changed or damaged: its sha256 is not the one in summary.json", "it is written anew")
