"""The pre-scan: one streamed pass over the input that counts, hashes, types, and finds duplicate keys, before anything runs.

What it finds is reused while files and settings stay as they were. Knows nothing of prompts, or of what a run has done.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...configs.schema import DataConfig
from ..core.errors import DataError
from ..files.file_stamp import sha256
from .column_paths import column_of, require_column
from .entry import UnreadableError
from .formats import TABLES, entries, place, row_key
from .scan_result import Scan, Scanned, stamp, surely_unchanged
from .sources import Source, find_sources, keep, source_errors
from .table_formats import batch_rows, hub_sha256, open_table
from .type_inference import EXACT, Column
from .unique_keys import Keys

SCAN_FILE = "inputs.json"
HASHED_BYTES = 64_000_000  # up to here a look at the bytes costs less than trust in a stamp that a user can set back


def scan(data: DataConfig, folder: Path, afresh: bool = False) -> Scan:
    """Scans the input, or returns the scan saved in ``folder`` (the run directory) if it still holds.

    stdin is spooled into ``folder``, beside what is kept of it there: call ``take_in`` when the run takes the input, and only
    then save, as a run directory may belong to another input. ``afresh``: what is in ``folder`` is another run's. A hub dataset
    is always scanned anew. Raises DataError for what stops the job: missing files, unknown formats, duplicate keys, no such key.
    """
    sources = find_sources(data, folder, afresh)
    saved = None if afresh else _still_true(folder / SCAN_FILE, data, sources)
    if saved:
        return saved
    tally = _Tally(data)
    scanned = tuple(_scan_source(source, tally) for source in sources)
    if data.key is not None:
        require_column(list(tally.columns), data.key, "data.key")
        tally.require_unique()
    schema = pa.schema([column.field(name) for name, column in tally.columns.items()])
    present = {name: column.present for name, column in tally.columns.items()}
    return Scan(scanned, tally.rows, tally.bad, schema, present, data.model_dump(mode="json"))


def take_in(found: Scan) -> Scan:
    """The scan, with rows that were piped in put where the run keeps them; call it when the run has accepted the input."""
    return replace(found, sources=tuple(_taken_in(one) if one.source.waiting else one for one in found.sources))


def _taken_in(scanned: Scanned) -> Scanned:
    kept = keep(scanned.source)
    return replace(scanned, source=kept, stamp=stamp(kept)[1])  # a new name is a new ctime


@dataclass(slots=True)
class _Tally:
    """What the pass has found so far; ``begun``: each source that it has come to, and the position of its first row."""

    config: DataConfig
    begun: list[tuple[int, Source]] = field(default_factory=list[tuple[int, Source]])
    rows: int = 0
    bad: int = 0
    columns: dict[str, Column] = field(default_factory=dict[str, Column])
    keys: Keys = field(default_factory=Keys)

    @property
    def room(self) -> int | None:
        """Rows left before ``data.limit``; None without one."""
        return None if self.config.limit is None else self.config.limit - self.rows

    def column(self, name: str) -> Column:
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = Column()
        return found

    def add_key(self, columns: dict[str, Any]) -> None:
        """Takes the next row's key in; a row without one is bad."""
        if self.config.key is None:
            return
        try:
            self.keys.add(row_key(columns, self.config, self.rows))
        except UnreadableError:
            self.bad += 1
            self.keys.add(None)
        if self.keys.due:
            self.require_unique()

    def add_bad(self) -> None:
        """Counts a row that cannot be read."""
        self.bad += 1
        if self.config.key is not None:
            self.keys.add(None)

    def require_unique(self) -> None:
        """Raises DataError where two rows have the same key."""
        if found := self.keys.duplicate():
            places = [self._entry(position) for position in found]
            raise DataError(
                f"data.key: two rows have the key {places[0][1]!r} in {self.config.key!r}: {places[0][0]}, and {places[1][0]}. "
                "Make the keys unique, or remove data.key to identify rows by their position."
            )

    def _entry(self, position: int) -> tuple[str, str]:
        """Where a row stands, and its key: read again, since only digests are kept."""
        first, source = next(found for found in reversed(self.begun) if found[0] <= position)
        for entry in entries(source, self.config, [range(position - first, position - first + 1)]):
            return place(source, entry, position), row_key(entry.parse(), self.config, position)
        raise DataError("The input changed while it was read. Let whatever writes it finish, then run the same command again.")


def _scan_source(source: Source, tally: _Tally) -> Scanned:
    before = stamp(source)
    if tally.room == 0:
        return Scanned(source, 0, None, *before)
    with source_errors(source):
        digest = hub_sha256(source, tally.config) if source.format == "hub" else sha256(source.file)
    rows = tally.rows
    tally.begun.append((rows, source))
    (_scan_table if source.format in TABLES else _scan_lines)(source, tally)
    if stamp(source) != before:
        raise DataError(f"{source.path} changed while it was read. Let whatever writes it finish, then run the same command again.")
    return Scanned(source, tally.rows - rows, digest, *before)


def _scan_lines(source: Source, tally: _Tally) -> None:
    for entry in entries(source, tally.config):
        if tally.room == 0:
            return
        try:
            columns = entry.parse()
        except UnreadableError:
            tally.add_bad()
        else:
            for name, value in columns.items():
                column = tally.column(name)
                if value is not None:
                    column.present += 1
                    column.shape.see(value)
            tally.add_key(columns)
        tally.rows += 1


def _scan_table(source: Source, tally: _Tally) -> None:
    schema, batches = open_table(source, tally.config)
    for declared in schema:
        tally.column(declared.name).declare(declared.type)
    key = tally.config.key and column_of(schema.names, tally.config.key)
    for whole in batches:
        batch = whole.slice(0, tally.room)
        for name in schema.names:
            values = batch.column(name)
            column = tally.column(name)
            column.present += len(values) - values.null_count
            column.shape.wide = column.shape.wide or _is_wide(values)
        if tally.config.key is None:
            tally.rows += batch.num_rows
        else:
            _scan_keys(batch.select([key] if key else []), tally)
        if tally.room == 0:
            return


def _scan_keys(batch: pa.RecordBatch, tally: _Tally) -> None:
    for row in batch_rows(batch) if batch.num_columns else [{}] * batch.num_rows:
        tally.add_key({} if isinstance(row, UnreadableError) else row)
        tally.rows += 1


def _is_wide(values: pa.Array) -> bool:
    if not pa.types.is_int64(values.type) and not pa.types.is_uint64(values.type):
        return False
    ends = pc.call_function("min_max", [values]).as_py()
    return ends["min"] is not None and (ends["min"] < -EXACT or ends["max"] > EXACT)


def _still_true(path: Path, data: DataConfig, sources: list[Source]) -> Scan | None:
    try:
        saved, saved_ns = Scan.load(path), path.stat().st_mtime_ns
    except (OSError, DataError):
        return None
    same = saved.config == data.model_dump(mode="json") and [scanned.source for scanned in saved.sources] == sources
    return saved if same and all(_is_same(one, saved_ns) for one in saved.sources) else None


def _is_same(scanned: Scanned, saved_ns: int) -> bool:
    """Whether the source is the one that was scanned: by its stamp, and where it is small by its bytes too."""
    if scanned.source.format == "hub" or not surely_unchanged(scanned, saved_ns):
        return False
    if scanned.sha256 is None or scanned.bytes is None or scanned.bytes >= HASHED_BYTES:
        return True
    with source_errors(scanned.source):
        return sha256(scanned.source.file) == scanned.sha256
