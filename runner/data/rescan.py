"""The input as it lies there now, hashed and counted anew: what ``verify`` holds against what the run was started with.

Parses no row, since the hash says whether it is the same; trusts no saved scan, and writes nothing.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.schema import DataConfig
from ..files.file_stamp import sha256
from .formats import entries
from .scan_result import Scan, Scanned, stamp
from .sources import SPOOL_NAMES, Source, find_sources, source_errors
from .table_formats import hub_sha256


def recount(data: DataConfig, run: Path) -> dict[str, Any]:
    """What ``Scan.fingerprint`` says of the input today; of stdin, of the copy in the run directory ``run``.

    Relative paths start at the working directory. Raises DataError for what is missing or cannot be read.
    """
    left, found = data.limit, list[Scanned]()
    for source in find_sources(without_stdin(data, run), run):
        at, digest, rows = stamp(source), None, 0
        if left != 0:
            with source_errors(source):
                digest = hub_sha256(source, data) if source.format == "hub" else sha256(Path(source.path))
            rows = _rows(source, data, left)
            left = None if left is None else left - rows
        found.append(Scanned(source, rows, digest, *at))
    scan = Scan(tuple(found), sum(one.rows for one in found), 0, pa.schema([]), {}, data.model_dump(mode="json"))
    return scan.fingerprint()


def without_stdin(data: DataConfig, run: Path) -> DataConfig:
    """The same input, with the copy in the run directory ``run`` in place of stdin."""
    paths = [data.path] if isinstance(data.path, str) else list(data.path)
    spool = str(run / SPOOL_NAMES["jsonl" if data.format == "auto" else data.format])
    return data.model_copy(update={"path": [spool if path == "-" else path for path in paths]})


def _rows(source: Source, data: DataConfig, limit: int | None) -> int:
    rows = 0
    for _ in entries(source, data):
        if rows == limit:
            break
        rows += 1
    return rows
