"""The pre-scan: one streamed pass over the input that counts, hashes, types, and finds duplicate keys, before anything runs.

What it finds is reused while files and settings stay as they were. Knows nothing of prompts, or of what a run has done.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..configs.schema import DataConfig
from .column_types import EXACT, Column
from .columns import column_of, require_column
from .durable import sha256
from .entries import TABLES, entries, place, row_key
from .errors import DataError
from .inputs import Scan, Scanned, stamp, unchanged
from .lines import Entry, UnreadableError, line_entries
from .sources import Source, find_sources, naming
from .tables import batch_rows, hub_sha256, open_table

SCAN_FILE = "inputs.json"


def scan(data: DataConfig, folder: Path) -> Scan:
    """Scans the input, or returns the scan saved in ``folder`` (the run directory) if it still holds.

    stdin is spooled into ``folder``. The caller saves: a run directory may belong to another input. A hub dataset is always
    scanned anew. Raises DataError for what stops the job: missing files, unknown formats, duplicate keys, no such key.
    """
    sources = find_sources(data, folder)
    saved = _still_true(folder / SCAN_FILE, data, sources)
    if saved:
        return saved
    tally = _Tally(data, sources)
    scanned = tuple(_scan_source(source, tally) for source in sources)
    if data.key is not None:
        require_column(list(tally.columns), data.key, "data.key")
    schema = pa.schema([column.field(name) for name, column in tally.columns.items()])
    present = {name: column.present for name, column in tally.columns.items()}
    return Scan(scanned, tally.rows, tally.bad, schema, present, data.model_dump(mode="json"))


@dataclass(slots=True)
class _Tally:
    """What the pass has found so far. ``keys`` holds 16 bytes a row: memory grows by no more."""

    config: DataConfig
    sources: list[Source]
    rows: int = 0
    bad: int = 0
    columns: dict[str, Column] = field(default_factory=dict[str, Column])
    keys: set[bytes] = field(default_factory=set[bytes])

    @property
    def room(self) -> int | None:
        """Rows left before ``data.limit``; None without one."""
        return None if self.config.limit is None else self.config.limit - self.rows

    def column(self, name: str) -> Column:
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = Column()
        return found

    def add_key(self, columns: dict[str, Any]) -> str | None:
        """Takes the row's key in; returns it if it was there before, and counts a row without one as bad."""
        if self.config.key is None:
            return None
        try:
            key = row_key(columns, self.config, self.rows)
        except UnreadableError:
            self.bad += 1
            return None
        digest = blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()
        if digest in self.keys:
            return key
        self.keys.add(digest)
        return None


def _scan_source(source: Source, tally: _Tally) -> Scanned:
    size, mtime_ns, inode = before = stamp(source)
    if tally.room == 0:
        return Scanned(source, 0, None, size, mtime_ns, inode)
    with naming(source):
        digest = hub_sha256(source, tally.config) if source.format == "hub" else sha256(Path(source.path))
    rows = tally.rows
    (_scan_table if source.format in TABLES else _scan_lines)(source, tally)
    if stamp(source) != before:
        raise DataError(f"{source.path} changed while it was read. Let whatever writes it finish, then run the same command again.")
    return Scanned(source, tally.rows - rows, digest, size, mtime_ns, inode)


def _scan_lines(source: Source, tally: _Tally) -> None:
    for entry in line_entries(source):
        if tally.room == 0:
            return
        try:
            columns = entry.parse()
        except UnreadableError:
            tally.bad += 1
        else:
            for name, value in columns.items():
                column = tally.column(name)
                if value is not None:
                    column.present += 1
                    column.shape.see(value)
            twice = tally.add_key(columns)
            if twice is not None:
                raise _duplicate(source, entry, twice, tally)
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
            _scan_keys(source, batch.select([key] if key else []), tally)
        if tally.room == 0:
            return


def _scan_keys(source: Source, batch: pa.RecordBatch, tally: _Tally) -> None:
    for row in batch_rows(batch) if batch.num_columns else [{}] * batch.num_rows:
        twice = tally.add_key({} if isinstance(row, UnreadableError) else row)
        if twice is not None:
            raise _duplicate(source, Entry(None, dict), twice, tally)
        tally.rows += 1


def _is_wide(values: pa.Array) -> bool:
    if not pa.types.is_int64(values.type) and not pa.types.is_uint64(values.type):
        return False
    ends = pc.call_function("min_max", [values]).as_py()
    return ends["min"] is not None and (ends["min"] < -EXACT or ends["max"] > EXACT)


def _duplicate(source: Source, entry: Entry, key: str, tally: _Tally) -> DataError:
    return DataError(
        f"data.key: two rows have the key {key!r} in {tally.config.key!r}: "
        f"{_first_place(key, tally)}, and {place(source, entry, tally.rows)}. "
        "Make the keys unique, or remove data.key to identify rows by their position."
    )


def _first_place(key: str, tally: _Tally) -> str:
    """Where the key stood first: looked up again, since only hashes are kept."""
    position = 0
    for source in tally.sources:
        for entry in entries(source, tally.config):
            try:
                if row_key(entry.parse(), tally.config, position) == key:
                    return place(source, entry, position)
            except UnreadableError:
                pass
            position += 1
    raise DataError("The input changed while it was read. Let whatever writes it finish, then run the same command again.")


def _still_true(path: Path, data: DataConfig, sources: list[Source]) -> Scan | None:
    if not path.exists():
        return None
    try:
        saved = Scan.load(path)
    except DataError:
        return None
    same = saved.config == data.model_dump(mode="json") and [scanned.source for scanned in saved.sources] == sources
    return saved if same and all(one.source.format != "hub" and unchanged(one) for one in saved.sources) else None
