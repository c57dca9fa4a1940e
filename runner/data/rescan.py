"""Hashes and counts the input as it is now, so that ``verify`` can compare it with the input of the run's start.

Parses no row, because the hash shows whether the input is the same. Trusts no saved scan, and writes nothing.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.data import DataConfig
from ..files.file_stamp import sha256
from ..formats.row_entries import entries
from ..formats.source import Source, source_errors
from ..formats.table_formats import hub_sha256
from .scan_result import Scan, ScannedSource, source_stamp
from .sources import find_sources
from .spooled_stdin import SPOOL_NAMES


def current_fingerprint(data: DataConfig, run: Path) -> dict[str, Any]:
    """Returns the ``Scan.fingerprint`` of the input today; see ``current_scan``."""
    return current_scan(data, run).fingerprint()


def current_scan(data: DataConfig, run: Path) -> Scan:
    """Returns the scan of the input today, without its columns. For stdin it reads the copy in the run directory ``run``.

    Relative paths start at the working directory. Raises DataError for files that are missing or can't be read.
    """
    left, scanned = data.limit, list[ScannedSource]()
    for source in find_sources(without_stdin(data, run), run):
        at, digest, rows = source_stamp(source), None, 0
        if left != 0:
            with source_errors(source):
                digest = hub_sha256(source, data) if source.format == "hub" else sha256(Path(source.path))
            rows = _rows(source, data, left)
            left = None if left is None else left - rows
        scanned.append(ScannedSource(source, rows, digest, *at))
    return Scan(tuple(scanned), sum(one.rows for one in scanned), 0, pa.schema([]), {}, data.model_dump(mode="json"))


def stored_data(run: dict[str, Any]) -> DataConfig:
    """Returns the input's settings in ``run``, the contents of a run.json."""
    data = run["config"]["data"]
    if "delimiter" not in data and not str(data["path"]).startswith("hf:"):  # older runs read all local files, whatever data.split said
        data = {**data, "split": None}
    return DataConfig.model_validate(data)


def without_stdin(data: DataConfig, run: Path) -> DataConfig:
    """Returns the same input, with the copy in the run directory ``run`` in place of stdin."""
    paths = [data.path] if isinstance(data.path, str) else list(data.path)
    spool = str(run / SPOOL_NAMES["jsonl" if data.format == "auto" else data.file_format])
    return data.model_copy(update={"path": [spool if path == "-" else path for path in paths]})


def _rows(source: Source, data: DataConfig, limit: int | None) -> int:
    rows = 0
    for _ in entries(source, data):
        if rows == limit:
            break
        rows += 1
    return rows
