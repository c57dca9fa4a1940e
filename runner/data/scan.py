"""The pre-scan. Before anything runs, one streamed pass over the input counts rows, hashes files, infers types and finds duplicate keys.

Its result is reused while files and settings stay the same, by another run too. Knows no prompts, and nothing of a run's progress.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...configs.data import DataConfig
from ...kernels.backend import cache_folder
from ..core.errors import DataError
from ..files.file_stamp import sha256
from ..formats.entry import UnreadableError
from ..formats.row_entries import entries
from ..formats.source import Source, source_errors
from ..formats.table_formats import batch_rows, hub_sha256, open_table
from .column_paths import columns_on, require_column
from .request_census import RequestCensus
from .row_key import row_key, row_place
from .scan_result import VERSION, Scan, ScannedSource, is_surely_unchanged, source_stamp
from .sources import find_distinct_sources
from .spooled_stdin import keep_spooled, reads_stdin
from .type_inference import EXACT, Column
from .unique_keys import KeyDigests

SCAN_FILE = "inputs.json"
REMEMBERED_BYTES = 1_000_000  # smaller inputs are scanned in a moment
HASHED_BYTES = 64_000_000  # smaller files are hashed again: that is cheap, and users can set a stamp back


def scan(data: DataConfig, folder: Path, afresh: bool = False) -> Scan:
    """Scans the input, or returns the scan saved in ``folder`` (the run directory) if it still holds.

    stdin is spooled into ``folder``, beside rows that the run keeps there. When the run accepts the input, call ``accept_stdin``, and
    save only then, because the folder may belong to another input. ``afresh``: the content of ``folder`` is another run's. A hub
    dataset is always scanned anew. Raises DataError for errors that stop the job: missing files, a file that is named twice, unknown
    formats, duplicate keys, no such key column.
    """
    sources = find_distinct_sources(data, folder, afresh)
    remembered = _remembered(data, sources)
    for path in ([] if afresh else [folder / SCAN_FILE]) + ([] if remembered is None else [remembered]):
        if (saved := _valid_saved_scan(path, data, sources)) is not None:
            return saved
    found = _scan(data, sources)
    if remembered is not None:
        with suppress(OSError):  # with a read-only home nothing is remembered, which only costs time
            remembered.parent.mkdir(parents=True, exist_ok=True)
            found.save(remembered)
    return found


def _remembered(data: DataConfig, sources: list[Source]) -> Path | None:
    """Returns the file in the user's cache for the scan of a large input, so that a run need not repeat its plan's; else None."""
    sizes = [] if reads_stdin(data) else [source_stamp(source)[0] for source in sources]
    folder = cache_folder("scans")
    if None in sizes or sum(size or 0 for size in sizes) < REMEMBERED_BYTES or not folder.is_absolute():
        return None
    named = repr((VERSION, version("mlx-bulk"), str(Path.cwd()), data.model_dump_json(), sources))
    return folder / f"{blake2b(named.encode(), digest_size=16).hexdigest()}.json"


def _scan(data: DataConfig, sources: list[Source]) -> Scan:
    tally = _Tally(data)
    scanned = tuple(_scan_source(source, tally) for source in sources)
    schema = pa.schema([column.field(name) for name, column in tally.columns.items()])
    present = {name: column.present for name, column in tally.columns.items()}
    found = Scan(scanned, tally.rows, tally.bad, schema, present, data.model_dump(mode="json"), tally.census)
    if data.key_column is not None:
        require_column(found.column_types, data.key_column, "data.key" if data.key else "data.format: openai")
        tally.require_unique()
    return found


def accept_stdin(scan: Scan) -> Scan:
    """Moves spooled rows to the place where the run keeps them, and returns the scan of it. Call it when the run accepts the input."""
    return replace(scan, sources=tuple(_accepted(one) if one.source.waiting else one for one in scan.sources))


def _accepted(scanned: ScannedSource) -> ScannedSource:
    kept = keep_spooled(scanned.source)
    return replace(scanned, source=kept, stamp=source_stamp(kept)[1])  # a new name is a new ctime


@dataclass(slots=True)
class _Tally:
    """The counts of the pass so far. ``starts``: each source that it has reached, with the position of its first row."""

    config: DataConfig
    starts: list[tuple[int, Source]] = field(default_factory=list[tuple[int, Source]])
    rows: int = 0
    bad: int = 0
    columns: dict[str, Column] = field(default_factory=dict[str, Column])
    keys: KeyDigests = field(default_factory=KeyDigests)
    census: RequestCensus = field(default_factory=RequestCensus)

    @property
    def rows_left(self) -> int | None:
        """Counts the rows left before ``data.limit``; None without a limit."""
        return None if self.config.limit is None else self.config.limit - self.rows

    def column(self, name: str) -> Column:
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = Column()
        return column

    def add_key(self, columns: dict[str, Any]) -> None:
        """Adds the next row's key. A row without a key is bad."""
        if self.config.key_column is None:
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
        if self.config.key_column is not None:
            self.keys.add(None)

    def require_unique(self) -> None:
        """Raises DataError where two rows have the same key."""
        if duplicates := self.keys.duplicate():
            places = [self._place_and_key(position) for position in duplicates]
            cure = ", or remove data.key to identify rows by their position" if self.config.key else ": answers are told apart by them"
            raise DataError(
                f"{'data.key: ' if self.config.key else ''}two rows have the key {places[0][1]!r} in {self.config.key_column!r}: "
                f"{places[0][0]}, and {places[1][0]}. Make the keys unique{cure}."
            )

    def _place_and_key(self, position: int) -> tuple[str, str]:
        """Returns a row's place and key. It reads the row again, because only digests of keys are kept."""
        first, source = next(start for start in reversed(self.starts) if start[0] <= position)
        for entry in entries(source, self.config, [range(position - first, position - first + 1)]):
            return row_place(source, entry, position), row_key(entry.parse(), self.config, position)
        raise DataError("The input changed while it was read. Let whatever writes it finish, then run the same command again.")


def _scan_source(source: Source, tally: _Tally) -> ScannedSource:
    before = source_stamp(source)
    if tally.rows_left == 0:
        return ScannedSource(source, 0, None, *before)
    with source_errors(source):
        digest = hub_sha256(source, tally.config) if source.format == "hub" else sha256(source.file)
    rows = tally.rows
    tally.starts.append((rows, source))
    (_scan_table if source.is_table else _scan_lines)(source, tally)
    if source_stamp(source) != before:
        raise DataError(f"{source.path} changed while it was read. Let whatever writes it finish, then run the same command again.")
    return ScannedSource(source, tally.rows - rows, digest, *before)


def _scan_lines(source: Source, tally: _Tally) -> None:
    for entry in entries(source, tally.config):
        if tally.rows_left == 0:
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
            if tally.config.format == "openai":
                tally.census.add(columns)
        tally.rows += 1


def _scan_table(source: Source, tally: _Tally) -> None:
    schema, batches = open_table(source, tally.config)
    for declared in schema:
        tally.column(declared.name).declare(declared.type)
    keys = columns_on(schema.names, tally.config.key_column) if tally.config.key_column else []
    for whole in batches:
        batch = whole.slice(0, tally.rows_left)
        for name in schema.names:
            values = batch.column(name)
            column = tally.column(name)
            column.present += len(values) - values.null_count
            column.shape.wide = column.shape.wide or _is_wide(values)
        if tally.config.key_column is None:
            tally.rows += batch.num_rows
        else:
            _scan_keys(batch.select(keys), tally)
        if tally.rows_left == 0:
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


def _valid_saved_scan(path: Path, data: DataConfig, sources: list[Source]) -> Scan | None:
    try:
        saved, saved_ns = Scan.load(path), path.stat().st_mtime_ns
    except (OSError, DataError):
        return None
    same = saved.config == data.model_dump(mode="json") and [scanned.source for scanned in saved.sources] == sources
    return saved if same and all(_is_same(one, saved_ns) for one in saved.sources) else None


def _is_same(scanned: ScannedSource, saved_ns: int) -> bool:
    """Returns True when the source is the one that was scanned: by its stamp, and a small one by its bytes too."""
    if scanned.source.format == "hub" or not is_surely_unchanged(scanned, saved_ns):
        return False
    if scanned.sha256 is None or scanned.bytes is None or scanned.bytes >= HASHED_BYTES:
        return True
    with source_errors(scanned.source):
        return sha256(scanned.source.file) == scanned.sha256
