"""What the pre-scan knows of the input: its sources, rows and column types, and the file that keeps it (``inputs.json``).

Does not read the input itself.
"""

import base64
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..core.errors import DataError
from ..files.checked_json import read_document, write_document
from ..files.file_stamp import Stamp, is_settled, stamp_of
from .column_paths import missing_column
from .sources import Source
from .type_inference import JSON_METADATA

VERSION = 2


@dataclass(slots=True, frozen=True)
class Scanned:
    """One source as the scan found it; ``bytes`` and ``stamp`` are None for a hub dataset.

    ``sha256`` is of the file's bytes as they lie on disk. A source behind ``data.limit`` has no rows and no hash.
    """

    source: Source
    rows: int
    sha256: str | None
    bytes: int | None
    stamp: Stamp | None


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
        """What a run's input is: the limit, and of each source that has rows path, format, codec, bytes, sha256 and rows.

        ``appendable`` marks uncompressed text formats, which may have grown at their end.
        """
        sources = [
            {
                "path": one.source.path,
                "format": "tsv" if one.source.format == "csv" and one.source.separator == "\t" else one.source.format,
                "codec": one.source.codec,
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
        """Writes the scan as a checksummed JSON document."""
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
        write_document(path, kept)

    @staticmethod
    def load(path: Path) -> "Scan":
        """Reads what ``save`` wrote. Raises DataError when it is missing, damaged or of another version."""
        try:
            kept = read_document(path)
            if kept["version"] != VERSION:
                raise ValueError(f"version {kept['version']}, expected {VERSION}")
            sources = tuple(_scanned(**one) for one in kept["sources"])
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept["schema"], validate=True)))
            present = {column["name"]: column["rows"] for column in kept["columns"]}
            return Scan(sources, kept["rows"], kept["bad"], schema, present, kept["config"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as a saved scan: {error}. Delete it; the input is then scanned again.") from error


def _scanned(source: dict[str, Any], stamp: list[int] | None, **values: Any) -> Scanned:
    return Scanned(Source(**source), stamp=None if stamp is None else (stamp[0], stamp[1], stamp[2]), **values)


def unchanged(scanned: Scanned) -> bool:
    """Whether the file is still the one that was scanned: by size and stamp."""
    return (scanned.bytes, scanned.stamp) == stamp(scanned.source)


def surely_unchanged(scanned: Scanned, saved_ns: int) -> bool:
    """Whether the file is unchanged, and so old when its scan was saved (an mtime in ns) that a later write shows in its stamp."""
    return unchanged(scanned) and (scanned.stamp is None or is_settled(scanned.stamp, saved_ns))


def stamp(source: Source) -> tuple[int | None, Stamp | None]:
    """Size and stamp of the source's file; None for each of a hub dataset. Raises DataError."""
    if source.format == "hub":
        return None, None
    try:
        found = source.file.stat()
    except OSError as error:
        raise DataError(f"{source.path} cannot be read any more: {error.strerror}.") from error
    return found.st_size, stamp_of(found)
