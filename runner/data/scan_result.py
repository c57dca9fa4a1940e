"""The result of the pre-scan: sources, rows and column types of the input. It is saved as ``inputs.json``.

Does not read the input itself.
"""

import base64
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..core.errors import DataError
from ..files.checked_json import read_document, write_document
from ..files.file_stamp import Stamp, is_settled, stamp_of
from ..formats.source import Source
from .column_paths import missing_column
from .request_census import RequestCensus
from .type_inference import JSON_METADATA

VERSION = 3


@dataclass(slots=True, frozen=True)
class ScannedSource:
    """One source at the time of the scan. ``bytes`` and ``stamp`` are None for a hub dataset.

    ``sha256`` is of the file's bytes on disk, still compressed. A source beyond ``data.limit`` has no rows and no hash.
    """

    source: Source
    rows: int
    sha256: str | None
    bytes: int | None
    stamp: Stamp | None


@dataclass(slots=True, frozen=True)
class Scan:
    """The whole input: its sources, rows (bad ones too, at most ``data.limit``) and columns.

    ``schema`` has one field a column, in order of first appearance. A column kept as JSON text has the metadata ``json: 1``.
    ``present`` counts the rows in which a column is not null. ``bad`` counts unreadable lines and rows without a key. ``census``: of a
    Batch file, what its requests ask for.
    """

    sources: tuple[ScannedSource, ...]
    rows: int
    bad: int
    schema: pa.Schema
    present: dict[str, int]
    config: dict[str, Any]
    census: RequestCensus = field(default_factory=RequestCensus)

    @property
    def columns(self) -> list[str]:
        """Lists the columns' names, in order of first appearance."""
        return list(self.schema.names)

    def in_order_of(self, columns: pa.StructType) -> "Scan":
        """Returns the same input with its columns, and the fields within them, in the order of ``columns``; others stand behind."""
        return replace(self, schema=pa.schema(_in_order(self.schema, columns), self.schema.metadata))

    @property
    def column_types(self) -> dict[str, pa.DataType | None]:
        """Returns each column's type by name. None for what may hold anything: a column kept as JSON text, or null in all rows."""
        open_ended = {column.name for column in self.schema if column.metadata == JSON_METADATA or not self.present[column.name]}
        return {column.name: None if column.name in open_ended else column.type for column in self.schema}

    def input_type(self, keep: Literal["all", "none"] | list[str]) -> pa.StructType | None:
        """Returns the type of the records' ``input``: the kept columns, in order of first appearance. None when there are none.

        Raises DataError for a name in ``keep`` that no row has.
        """
        if keep == "none":
            return None
        for name in [] if keep == "all" or not self.columns else keep:
            if name not in self.columns:
                raise missing_column(self.columns, name, "data.keep")
        fields = [column for column in self.schema if keep == "all" or column.name in keep]
        return pa.struct(fields) if fields else None

    def fingerprint(self) -> dict[str, Any]:
        """Returns the identity of a run's input: the limit, and path, format, codec, bytes, sha256 and rows of each source with rows.

        ``appendable`` marks files to whose end lines may be added.
        """
        sources = [
            {
                "path": one.source.path,
                "format": _format(one.source),
                "codec": one.source.codec,
                "bytes": one.bytes,
                "sha256": one.sha256,
                "rows": one.rows,
                "appendable": one.source.is_appendable,
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
            "census": self.census.as_json(),
            "schema": base64.b64encode(self.schema.serialize()).decode(),
        }
        write_document(path, kept)

    @staticmethod
    def load(path: Path) -> "Scan":
        """Reads a saved scan. Raises DataError when it is missing, damaged or of another version."""
        try:
            kept = read_document(path)
            if kept["version"] != VERSION:
                raise ValueError(f"version {kept['version']}, expected {VERSION}")
            sources = tuple(_scanned(**one) for one in kept["sources"])
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept["schema"], validate=True)))
            present = {column["name"]: column["rows"] for column in kept["columns"]}
            census = RequestCensus.from_json(kept["census"])
            return Scan(sources, kept["rows"], kept["bad"], schema, present, kept["config"], census)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as a saved scan: {error}. Delete it; the input is then scanned again.") from error


def _in_order(fields: Iterable[pa.Field], of: Iterable[pa.Field]) -> list[pa.Field]:
    """Returns ``fields``, and those within them, in the order of ``of``; those that it lacks stand behind, in their own order."""
    types = {field.name: field.type for field in of}
    places = {name: place for place, name in enumerate(types)}
    arranged = [field.with_type(_arranged(field.type, types.get(field.name, field.type))) for field in fields]
    return sorted(arranged, key=lambda field: places.get(field.name, len(places)))


def _arranged(kind: pa.DataType, of: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType) and isinstance(of, pa.StructType):
        return pa.struct(_in_order(kind, of))
    for family, make in ((pa.ListType, pa.list_), (pa.LargeListType, pa.large_list)):
        if isinstance(kind, family) and isinstance(of, pa.ListType | pa.LargeListType):
            return make(kind.value_field.with_type(_arranged(kind.value_type, of.value_type)))
    return kind


def _format(source: Source) -> str:
    """Names the format with all that decides how the file's bytes are read."""
    names = {",": "csv", "\t": "tsv"}
    return names.get(source.separator, f"csv with {source.separator}") if source.format == "csv" else source.format


def _scanned(source: dict[str, Any], stamp: list[int] | None, **values: Any) -> ScannedSource:
    return ScannedSource(Source(**source), stamp=None if stamp is None else (stamp[0], stamp[1], stamp[2]), **values)


def is_unchanged(scanned: ScannedSource) -> bool:
    """Returns True when the file is still the one that was scanned, by size and stamp."""
    return (scanned.bytes, scanned.stamp) == source_stamp(scanned.source)


def is_surely_unchanged(scanned: ScannedSource, saved_ns: int) -> bool:
    """Returns True when the file is unchanged, and was old enough at ``saved_ns`` (an mtime) that any later write changed its stamp."""
    return is_unchanged(scanned) and (scanned.stamp is None or is_settled(scanned.stamp, saved_ns))


def source_stamp(source: Source) -> tuple[int | None, Stamp | None]:
    """Returns the size and the stamp of the source's file, both None for a hub dataset. Raises DataError."""
    if source.format == "hub":
        return None, None
    try:
        status = source.file.stat()
    except OSError as error:
        raise DataError(f"{source.path} cannot be read any more: {error.strerror}.") from error
    return status.st_size, stamp_of(status)
