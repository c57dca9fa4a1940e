"""What the pre-scan knows of the input: its sources, rows and column types, and the file that keeps it (``inputs.json``).

Does not read the input itself.
"""

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from .column_types import JSON_METADATA
from .columns import missing_column
from .durable import atomic_write
from .errors import DataError
from .sources import Source

VERSION = 1


@dataclass(slots=True, frozen=True)
class Scanned:
    """One source as the scan found it; ``bytes``, ``mtime_ns`` and ``inode`` are None for a hub dataset.

    ``sha256`` is of the file's bytes as they lie on disk. A source behind ``data.limit`` has no rows and no hash.
    """

    source: Source
    rows: int
    sha256: str | None
    bytes: int | None
    mtime_ns: int | None
    inode: int | None


@dataclass(slots=True, frozen=True)
class Scan:
    """The input as a whole: rows (bad ones too, at most ``data.limit``), its sources, and its columns.

    ``schema`` has a field a column, in order of first appearance; one that is kept as JSON text has the metadata ``json: 1``.
    ``present`` counts the rows in which a column is not null. ``bad`` counts unreadable lines and rows without a key.
    """

    sources: tuple[Scanned, ...]
    rows: int
    bad: int
    schema: pa.Schema
    present: dict[str, int]
    config: dict[str, Any]

    @property
    def columns(self) -> list[str]:
        """The columns' names, in order of first appearance."""
        return list(self.schema.names)

    def input_type(self, keep: Literal["all", "none"] | list[str]) -> pa.StructType | None:
        """The type of the records' ``input``: the kept columns, in order of first appearance; None when there are none.

        Raises DataError for a kept name that no row has.
        """
        if keep == "none":
            return None
        for name in [] if keep == "all" or not self.columns else keep:
            if name not in self.columns:
                raise missing_column(self.columns, name, "data.keep")
        fields = [column for column in self.schema if keep == "all" or column.name in keep]
        return pa.struct(fields) if fields else None

    def fingerprint(self) -> dict[str, Any]:
        """What of the input belongs to a run's identity: the limit, and path, bytes, sha256 and rows of each source that has rows.

        ``appendable`` marks uncompressed text formats, which may have grown at their end.
        """
        sources = [
            {
                "path": one.source.path,
                "bytes": one.bytes,
                "sha256": one.sha256,
                "rows": one.rows,
                "appendable": one.source.codec is None and one.source.format in ("jsonl", "csv", "text"),
            }
            for one in self.sources
            if one.sha256 is not None
        ]
        return {"limit": self.config["limit"], "sources": sources}

    def save(self, path: Path) -> None:
        """Writes the scan as JSON, whole or not at all."""
        described = [
            {"name": column.name, "type": str(column.type), "json": column.metadata == JSON_METADATA, "rows": self.present[column.name]}
            for column in self.schema
        ]
        kept = {
            "version": VERSION,
            "rows": self.rows,
            "bad": self.bad,
            "columns": described,
            "sources": [asdict(scanned) for scanned in self.sources],
            "config": self.config,
            "schema": base64.b64encode(self.schema.serialize()).decode(),
        }
        atomic_write(path, json.dumps(kept, indent=1, ensure_ascii=False).encode())

    @staticmethod
    def load(path: Path) -> "Scan":
        """Reads what ``save`` wrote. Raises DataError when it is missing, damaged or of another version."""
        try:
            kept = json.loads(path.read_bytes())
            if kept["version"] != VERSION:
                raise ValueError(f"version {kept['version']}, expected {VERSION}")
            sources = tuple(Scanned(Source(**one.pop("source")), **one) for one in kept["sources"])
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept["schema"], validate=True)))
            present = {column["name"]: column["rows"] for column in kept["columns"]}
            return Scan(sources, kept["rows"], kept["bad"], schema, present, kept["config"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as a saved scan: {error}. Delete it; the input is then scanned again.") from error


def unchanged(scanned: Scanned) -> bool:
    """Whether the file is still the one that was scanned: by size, mtime and inode."""
    return (scanned.bytes, scanned.mtime_ns, scanned.inode) == stamp(scanned.source)


def stamp(source: Source) -> tuple[int | None, int | None, int | None]:
    """Size, mtime in ns and inode of the source's file; None for each of a hub dataset. Raises DataError."""
    if source.format == "hub":
        return None, None, None
    try:
        found = Path(source.path).stat()
    except OSError as error:
        raise DataError(f"{source.path} cannot be read any more: {error.strerror}.") from error
    return found.st_size, found.st_mtime_ns, found.st_ino
