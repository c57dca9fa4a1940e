"""Tests Parquet, JSON lines and CSV files: values read back, changes that are noted, and bounded memory."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.jobs.export import table_writers
from mlx_bulk.jobs.export.table_writers import WRITERS, Notes, portions, write_csv, write_jsonl, write_parquet

from ..support.exported_runs import queried

RECORDS: list[dict[str, Any]] = [
    {"row": 0, "text": 'a,"b"\r\nc', "floats": [None, -0.5], "flag": True, "score": -1.5, "seed": 2**63},
    {"row": 1, "text": None, "floats": None, "flag": None, "score": None, "seed": None},
    {"row": 2, "text": "", "floats": [], "flag": False, "score": 2.0, "seed": 0},
]
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("text", pa.large_string()),
        pa.field("floats", pa.list_(pa.float32()), metadata={b"leading_null": b"1"}),
        ("flag", pa.bool_()),
        ("score", pa.float64()),
        ("seed", pa.uint64()),
    ]
)
BATCH = pa.RecordBatch.from_pylist(RECORDS, SCHEMA)
UNGUARDED = re.compile(r"^'('*[=+\-@＝＋－＠\t\r])")

Write = Callable[[BinaryIO, pa.Schema, Any], Notes]


def written(write: Write, *batches: pa.RecordBatch) -> tuple[bytes, Notes]:
    file = io.BytesIO()
    notes = write(file, batches[0].schema, iter(batches))
    assert not file.closed
    return file.getvalue(), notes


def texts(*values: str | None) -> pa.RecordBatch:
    return pa.record_batch({"row": pa.array(range(len(values))), "text": pa.array(values, pa.large_string())})


def test_parquet_keeps_all_types_and_metadata():
    content, notes = written(write_parquet, BATCH, BATCH.slice(1))
    table = pq.read_table(io.BytesIO(content))
    assert table.schema.equals(SCHEMA)
    assert table.schema.field("floats").metadata == {b"leading_null": b"1"}
    assert table.to_pylist() == RECORDS + RECORDS[1:]
    assert notes == []


def test_parquet_has_bounded_row_groups_in_zstd(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_writers, "ROW_GROUP_BYTES", 2 * BATCH.nbytes)
    about = pq.ParquetFile(io.BytesIO(written(write_parquet, *[BATCH] * 5)[0])).metadata
    assert [about.row_group(i).num_rows for i in range(about.num_row_groups)] == [6, 6, 3]
    assert about.row_group(0).column(0).compression == "ZSTD"


def vectors(rows: int = 40, size: int = 24) -> pa.RecordBatch:
    """Records of an embedding job in all types of vectors, with a struct beside them; one row has several vectors."""
    numbers = np.random.default_rng(0).normal(size=(rows, size)).astype(np.float32)
    kinds = {
        "f32": numbers,
        "f16": numbers.astype(np.float16),
        "i8": (40 * numbers).astype(np.int8),
        "bits": np.packbits(numbers > 0, axis=1),
    }
    columns: dict[str, pa.Array] = {"row": pa.array(range(rows)), "input": pa.array([{"q": "a question", "n": 1}] * rows)}
    columns |= {name: pa.FixedSizeListArray.from_arrays(pa.array(own.ravel()), own.shape[1]) for name, own in kinds.items()}
    columns["several"] = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), columns["f32"])
    return pa.record_batch(columns)


def test_vectors_in_parquet_are_split_bytes_without_a_dictionary():
    batch = vectors()
    content, notes = written(write_parquet, batch, batch)
    assert notes == []
    assert pq.read_table(io.BytesIO(content)).to_batches()[0].slice(0, 40).equals(batch)
    group = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    encodings = {group.column(at).path_in_schema: set(group.column(at).encodings) for at in range(group.num_columns)}
    dictionary = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
    assert all(bool(dictionary & found) == (path.split(".")[0] in ("row", "input")) for path, found in encodings.items()), encodings
    for name in ("f32", "f16", "several"):
        assert any("BYTE_STREAM_SPLIT" in found for path, found in encodings.items() if path.startswith(name)), encodings


def test_vectors_in_parquet_are_read_by_polars_and_duckdb(tmp_path: Path):
    batch = vectors()
    path = tmp_path / "v.parquet"
    path.write_bytes(written(write_parquet, batch)[0])
    frame = pl.read_parquet(path)
    assert (frame.schema["f32"], frame.schema["i8"]) == (pl.Array(pl.Float32, 24), pl.Array(pl.Int8, 24))
    assert np.array_equal(frame["f32"].to_numpy(), batch.column("f32").flatten().to_numpy().reshape(40, 24))
    found = queried(f"SELECT row, f32, array_cosine_similarity(f32::FLOAT[24], f32::FLOAT[24]) AS alike FROM '{path}' ORDER BY row")
    assert found.column("f32").to_pylist() == batch.column("f32").to_pylist()
    assert found.column("alike").to_pylist() == pytest.approx([1.0] * 40)
    read = pq.read_table(path).column("f32").combine_chunks()
    assert read.flatten().to_numpy(zero_copy_only=True).reshape(40, 24).shape == (40, 24)  # a matrix without a copy


@pytest.mark.parametrize("write", [write_jsonl, write_csv])
def test_vectors_in_text_are_json_arrays(write: Write):
    batch = vectors(2, 3).select(["f32", "i8", "several"])
    content, _ = written(write, batch)
    if write is write_jsonl:
        found = [json.loads(line) for line in content.decode().splitlines()]
    else:
        found = [{name: json.loads(cell) for name, cell in line.items()} for line in csv.DictReader(io.StringIO(content.decode()))]
    for record, expected in zip(found, batch.to_pylist(), strict=True):
        assert record["i8"] == expected["i8"]
        assert np.array_equal(np.array(record["f32"], np.float32), np.array(expected["f32"], np.float32))
        assert np.array_equal(np.array(record["several"], np.float32), np.array(expected["several"], np.float32))


def test_jsonl_is_an_object_a_line():
    content, notes = written(write_jsonl, BATCH, BATCH)
    assert [json.loads(line) for line in content.decode().split("\n")[:-1]] == RECORDS * 2
    assert notes == []


@pytest.mark.parametrize("write", [write_jsonl, write_csv])
def test_nan_and_infinity_in_json_are_reported(write: Write):
    batch = pa.record_batch({"logprobs": pa.array([[float("-inf"), float("nan"), -1.0]], pa.list_(pa.float32()))})
    content, notes = written(write, batch)
    assert b"[null,null,-1.0]" in content
    assert notes == ["numbers that JSON does not know (NaN, infinities) are null: 2"]


def test_csv_tells_null_from_empty_and_nests_json(tmp_path: Path):
    content, notes = written(write_csv, BATCH)
    assert notes == []
    (tmp_path / "a.csv").write_bytes(content)
    read = pl.read_csv(tmp_path / "a.csv")
    assert read["text"].to_list() == ['a,"b"\r\nc', None, ""]
    assert read["floats"].to_list() == ["[null,-0.5]", None, "[]"]
    assert (read["row"].to_list(), read["score"].to_list()) == ([0, 1, 2], [-1.5, None, 2.0])
    assert read["seed"].to_list() == [2**63, None, 0]
    assert queried(f"select flag from '{tmp_path}/a.csv' order by row")["flag"].to_pylist() == [True, None, False]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("- a list's item", "'- a list's item"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("＝1+1", "'＝1+1"),
        ("'=1", "''=1"),  # so that taking one off gives it back
        ("-5", "-5"),
        ("+1.5e-3", "+1.5e-3"),
        ("'tis", "'tis"),
        ("a=1", "a=1"),
    ],
)
def test_no_cell_is_a_formula(text: str, cell: str):
    content, notes = written(write_csv, texts(text, None))
    assert list(csv.reader(io.StringIO(content.decode(), newline="")))[1:] == [["0", cell], ["1", ""]]
    assert notes == (["cells that a spreadsheet would run as formulas begin with an apostrophe now: 1"] if cell != text else [])


@settings(deadline=None)  # a shared machine is slow at times
@given(st.lists(st.text(st.sampled_from("'=+-@\t\r\n1.e ,\"a＝é")), min_size=1))
def test_taking_one_apostrophe_off_gives_back_every_text(values: list[str]):
    content, _ = written(write_csv, texts(*values))
    read = [cells[1] for cells in csv.reader(io.StringIO(content.decode(), newline=""))][1:]
    assert [UNGUARDED.sub(r"\1", cell) for cell in read] == values
    assert not [cell for cell in read if cell[:1] in tuple("=+-@\t\r＝") and cell and not is_number(cell)]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_batch_is_written_before_the_next_is_read(kind: str):
    file, sizes = io.BytesIO(), list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield BATCH
            sizes.append(file.tell())

    WRITERS[kind](file, SCHEMA, batches())
    assert sizes[0] < sizes[1] < sizes[2]


@settings(deadline=None)  # a shared machine is slow at times
@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_portions_are_as_large_as_asked_for_and_in_order(sizes: list[int], size: int):
    batches = [pa.record_batch({"x": pa.array([0] * count, pa.int8())}) for count in sizes]
    groups = [list(group) for group in portions(batches, size)]
    assert [batch for group in groups for batch in group] == batches
    totals = [sum(batch.nbytes for batch in group) for group in groups]
    assert all(total >= size for total in totals[:-1])
    assert all(total - group[-1].nbytes < size for total, group in zip(totals, groups, strict=True))
