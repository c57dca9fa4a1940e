"""Reads tables: Parquet, Arrow IPC (file or stream), and hub datasets.

Gives a schema, and batches of at most 1024 rows whatever the file's own batches are, so that memory stays bounded. A cell without a
Python value (a year past 9999, broken UTF-8) spoils only its own row.
"""

import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ...configs.data import DataConfig
from ...configs.visible import visible
from ..core.errors import DataError
from .entry import ALL_ROWS, Entry, UnreadableError
from .source import Source, open_stream, source_errors

BATCH_ROWS = 1024

_BUFFER_BYTES = 1 << 20  # of a Parquet column that is being read

Table = tuple[pa.Schema, Iterator[pa.RecordBatch]]


def open_table(source: Source, data: DataConfig) -> Table:
    """Returns the source's schema, and its rows in record batches of at most 1024 rows. Raises DataError."""
    schema, batches, _ = _open(source, data, 0)
    return schema, batches


def table_entries(source: Source, data: DataConfig, ranges: Sequence[range] = ALL_ROWS) -> Iterator[Entry]:
    """Yields the source's rows in ``ranges`` as entries. A batch becomes Python values when the first of its rows is parsed."""
    if not ranges:
        return
    _, batches, start = _open(source, data, ranges[0].start)
    spans = iter(ranges)
    span = next(spans)
    for batch in batches:
        end = start + batch.num_rows
        rows = cache(partial(batch_rows, batch))
        while span.start < end:
            for row in range(max(span.start, start), min(span.stop, end)):
                yield Entry(None, partial(_pick, rows, row - start))
            if span.stop > end:
                break
            span = next(spans, None)
            if span is None:
                return
        start = end


def batch_rows(batch: pa.RecordBatch) -> list[dict[str, Any] | UnreadableError]:
    """Returns the batch's rows as plain Python values, or the error of a row that has none."""
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        return [_row(batch.slice(index, 1)) for index in range(batch.num_rows)]


def hub_sha256(source: Source, data: DataConfig) -> str:
    """Returns a hash of a hub dataset's schema and rows, because a dataset has no file of its own to hash."""
    schema, batches = open_table(source, data)
    digest = hashlib.sha256(schema.remove_metadata().serialize())
    for batch in batches:
        digest.update(batch.serialize())
    return digest.hexdigest()


def _open(source: Source, data: DataConfig, first: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int]:
    """Returns the schema, the batches, and the row at which they begin: ``first`` or an earlier row, where the format can skip."""
    start = 0
    with source_errors(source):
        if source.format == "hub":
            schema, batches = _open_hub(source, data)
        elif source.format == "arrow":
            schema, batches = _open_arrow(source)
        elif source.format == "parquet":
            schema, batches, start = _open_parquet(source, first)
        else:
            raise ValueError(f"no reader for tables of the format {source.format}")
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{source.path}: the table has more than one column named {', '.join(map(visible, twice))}. Rename them.")
    return schema, _checked_batches(source, batches), start


def _row(one: pa.RecordBatch) -> dict[str, Any] | UnreadableError:
    try:
        return one.to_pylist()[0]
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return UnreadableError(f"a cell has no Python value: {error}", "")


def _pick(rows: Callable[[], list[dict[str, Any] | UnreadableError]], index: int) -> dict[str, Any]:
    row = rows()[index]
    if isinstance(row, UnreadableError):
        raise row
    return row


def _checked_batches(source: Source, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with source_errors(source):
        for batch in batches:
            batch.validate()  # offsets that point past their buffer would crash the process
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _open_parquet(source: Source, first: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int]:
    """Opens a Parquet file at the row group that holds ``first``. Returns what ``_open`` returns."""
    # With pre_buffer pyarrow would read the columns of all row groups at once, and without a buffer size those of a whole one.
    file = pq.ParquetFile(_seekable(source), pre_buffer=False, buffer_size=_BUFFER_BYTES)
    groups, group, start = file.num_row_groups, 0, 0
    while group < groups and start + file.metadata.row_group(group).num_rows <= first:
        start += file.metadata.row_group(group).num_rows
        group += 1
    batches = file.iter_batches(batch_size=BATCH_ROWS, row_groups=range(group, groups))
    return file.schema_arrow, _complete(batches, file.metadata.num_rows - start), start


def _complete(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a file that declares ``rows`` rows. Raises EOFError if they end early, which pyarrow does not notice."""
    for batch in batches:
        rows -= batch.num_rows
        yield batch
    if rows:
        raise EOFError(f"it ends {rows} rows early")


def _open_arrow(source: Source) -> Table:
    file = _seekable(source)
    magic = bytes(file.read(6))
    file.seek(0)
    if magic.startswith(b"FEA1"):
        raise DataError(f"{source.path}: this is Feather version 1. Write it again with pyarrow.feather.write_feather(version=2).")
    if magic == b"ARROW1":
        reader = pa.ipc.open_file(file)
        return reader.schema, (reader.get_batch(index) for index in range(reader.num_record_batches))
    stream = pa.ipc.open_stream(file)
    return stream.schema, iter(stream)


def _seekable(source: Source) -> pa.NativeFile:
    """Opens the file, or its decompressed bytes in a temporary file that vanishes with its last reader.

    It is read, not memory-mapped: if a mapped file is cut off, SIGBUS ends the process without a message.
    """
    if source.codec is None:
        return pa.OSFile(str(source.file))
    spooled = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the table that is read from it
    with open_stream(source) as stream:
        shutil.copyfileobj(stream, spooled, 1 << 20)
    spooled.seek(0)
    return pa.PythonFile(spooled, mode="r")


def _open_hub(source: Source, data: DataConfig) -> Table:
    import datasets

    name, split = source.path.removeprefix("hf:"), data.split or "train"
    try:
        loaded = datasets.load_dataset(name, name=data.config, split=split, revision=data.revision)
    except Exception as error:  # datasets raises what its loaders, the hub and the network raise
        raise DataError(
            f"data.path: the dataset {name!r} cannot be loaded (data.split {split!r}, data.config {data.config!r}): {error}"
        ) from error
    tables = cast(Iterator[pa.Table], loaded.with_format("arrow").iter(BATCH_ROWS))
    return loaded.features.arrow_schema, (batch for table in tables for batch in table.combine_chunks().to_batches())
