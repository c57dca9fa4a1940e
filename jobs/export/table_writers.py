"""Writes record batches as Parquet, JSON lines or CSV, batch by batch in bounded memory.

Takes an open file; knows no run and no path. Counts the values that a format cannot hold unchanged, and notes them.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from .json_arrays import count_not_finite, json_texts, pc

Batches = Iterable[pa.RecordBatch]
Notes = list[str]

ROW_GROUP_BYTES = 64 << 20  # of Arrow; a reader holds one row group at a time
# OWASP's list of characters that make a cell a formula; also after apostrophes, so that one can be removed again.
_FORMULA = r"^'*[=+\-@＝＋－＠\t\r]"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def write_parquet(file: BinaryIO, schema: pa.Schema, batches: Batches) -> Notes:
    """Writes Parquet with all types, zstd-compressed, in row groups of about 64 MB. Maps become lists of {key, value}.

    The library datasets cannot load a column that holds a map. Vectors (lists of one length) have no dictionary, which would only make
    them larger; the bytes of their floats are split, which zstd makes a seventh smaller.
    """
    loadable = pa.schema([column.with_type(_without_maps(column.type)) for column in schema])
    notes: Notes = []
    if not loadable.equals(schema):
        schema, batches = loadable, (batch.cast(loadable) for batch in batches)
        notes = ["maps are lists of {key, value} here, as the library datasets loads no maps"]
    # Content-defined chunks: the hub stores data that two uploads share once.
    with pq.ParquetWriter(
        file, schema, compression="zstd", write_page_index=True, use_content_defined_chunking=True, **_encodings(schema)
    ) as writer:
        for group in portions(batches, ROW_GROUP_BYTES):
            table = pa.Table.from_batches(list(group), schema)
            writer.write_table(table, row_group_size=table.num_rows)
    return notes


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Returns the options of ``ParquetWriter`` for a schema with vectors; none without."""
    numbers = {column.name: number for column in schema if (number := _vector_number(column.type)) is not None}
    if not numbers:
        return {}
    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    about = pq.ParquetFile(empty).schema
    leaves = [about.column(place) for place in range(len(about.names))]
    split = {leaf.path: "BYTE_STREAM_SPLIT" for leaf in leaves if pa.types.is_floating(numbers.get(leaf.path.split(".")[0], pa.null()))}
    return {"use_dictionary": [leaf.path for leaf in leaves if leaf.path.split(".")[0] not in numbers], "column_encoding": split}


def _vector_number(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type of a vector's numbers, or of a list's vectors; None where a column holds none."""
    if pa.types.is_list(kind):
        return _vector_number(kind.value_type)
    return kind.value_type if pa.types.is_fixed_size_list(kind) else None


def write_jsonl(file: BinaryIO, schema: pa.Schema, batches: Batches) -> Notes:
    """Writes an object a line, with the columns' names and nesting."""
    lost = 0
    for batch in batches:
        records = batch.to_struct_array()
        lost += count_not_finite(records)
        file.writelines(f"{text}\n".encode() for text in json_texts(records).to_pylist())
    return _lost(lost)


def write_csv(file: BinaryIO, schema: pa.Schema, batches: Batches) -> Notes:
    """Writes a line of names, then the records; lists and structs are JSON, a null is an empty cell, an empty string "".

    A text that a spreadsheet would run as a formula (it begins with = + - @, a tab or a carriage return, and is no number) gets an
    apostrophe before it. To restore the texts, remove one apostrophe from each that begins with apostrophes and such a character.
    """
    lost = guarded = 0
    texts = pa.schema([pa.field(column.name, pa.string() if _is_text(column.type) else column.type) for column in schema])
    with csv.CSVWriter(pa.PythonFile(_KeptOpen(file), mode="w"), texts) as writer:
        for batch in batches:
            shielded = [_shield(column) for column in batch.columns]
            lost += sum(count_not_finite(column) for column in batch.columns if pa.types.is_nested(column.type))
            guarded += sum(count for _, count in shielded)
            writer.write_batch(pa.RecordBatch.from_arrays([cells for cells, _ in shielded], schema=texts))
    notes = [f"cells that a spreadsheet would run as formulas begin with an apostrophe now: {guarded:,}"] if guarded else []
    return [*notes, *_lost(lost)]


def portions(batches: Batches, size: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """Groups the batches; a group ends with the batch that brings it to ``size`` bytes. Each group must be read before the next."""
    rest = iter(batches)

    def group(first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        held, batch = first.nbytes, first
        yield batch
        while held < size and (batch := next(rest, None)) is not None:
            held += batch.nbytes
            yield batch

    while (first := next(rest, None)) is not None:
        yield group(first)


def _without_maps(kind: pa.DataType) -> pa.DataType:
    """Returns the type with a list of {key, value} in place of each map."""
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([pa.field("key", _without_maps(kind.key_type), False), ("value", _without_maps(kind.item_type))]))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_maps(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_maps(kind.value_type)))
    return pa.large_list(_without_maps(kind.value_type)) if pa.types.is_large_list(kind) else kind


def _lost(count: int) -> Notes:
    return [f"numbers that JSON does not know (NaN, infinities) are null: {count:,}"] if count else []


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _shield(column: pa.Array) -> tuple[pa.Array, int]:
    """Returns the column's cells, with an apostrophe before each text that a spreadsheet would run, and the number of those."""
    if pa.types.is_nested(column.type):
        return pc.if_else(column.is_valid(), json_texts(column), None), 0  # begins with [ or {
    if not _is_text(column.type):
        return column, 0
    cells = pc.cast(column, pa.string())
    formulas = pc.and_(pc.match_substring_regex(cells, _FORMULA), pc.invert(pc.match_substring_regex(cells, _NUMBER)))
    count = int(pc.sum(formulas).as_py() or 0)
    return pc.if_else(pc.fill_null(formulas, False), pc.binary_join_element_wise("'", cells, ""), cells) if count else cells, count


class _KeptOpen:
    """A file that pyarrow does not close."""

    closed = False

    def __init__(self, file: BinaryIO):
        self.write, self.flush, self.tell = file.write, file.flush, file.tell

    def close(self) -> None:
        """Does nothing: the file is not pyarrow's to close."""


WRITERS: dict[str, Callable[[BinaryIO, pa.Schema, Batches], Notes]] = {
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "csv": write_csv,
}
