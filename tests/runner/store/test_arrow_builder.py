"""Tests every column type, written and read back through Arrow files and `datasets`."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mlx_bulk.runner.store.arrow_builder import LEADING_NULL, Masked, record_batch, record_bytes

FLOATS, NESTED = pa.list_(pa.float32()), pa.list_(pa.list_(pa.float32()))
INPUT = pa.struct(
    [
        pa.field("question", pa.large_string()),
        pa.field("answer", pa.large_string(), metadata={b"json": b"1"}),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("meta", pa.struct([("id", pa.int64())])),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("input", INPUT),
        pa.field("sample", pa.int32()),
        pa.field("completion", pa.large_string()),
        pa.field("truncated", pa.bool_()),
        pa.field("completion_ids", pa.list_(pa.int32())),
        pa.field("logprobs", FLOATS),
        pa.field("prompt_logprobs", FLOATS, metadata=LEADING_NULL),
        pa.field("top_ids", pa.list_(pa.list_(pa.int32()))),
        pa.field("prompt_top_logprobs", NESTED, metadata=LEADING_NULL),
        pa.field("scored", pa.list_(pa.bool_())),
        pa.field("cumulative_logprob", pa.float64()),
        pa.field("seed", pa.uint64()),
    ]
)
FULL: dict[str, Any] = {
    "row": 7,
    "key": "k7",
    "input": {"question": "où?", "answer": {"n": [1, "é"]}, "tags": ["a", None], "meta": {"id": 1}, "not kept": 3},
    "sample": 1,
    "completion": "oui",
    "truncated": False,
    "completion_ids": np.array([3, 4], np.int32),
    "logprobs": np.array([-0.5, -np.inf], np.float32),
    "prompt_logprobs": np.array([-1.5], np.float32),
    "top_ids": np.array([[1, 2], [3, 4]], np.int32),
    "prompt_top_logprobs": np.array([[-0.25, -0.5]], np.float32),
    "scored": np.array([True, False]),
    "cumulative_logprob": -0.5,
    "seed": 2**53 - 1,
}
EXPECTED: dict[str, Any] = {
    **FULL,
    "input": {"question": "où?", "answer": '{"n": [1, "é"]}', "tags": ["a", None], "meta": {"id": 1}},
    "completion_ids": [3, 4],
    "logprobs": [-0.5, -np.inf],
    "prompt_logprobs": [None, -1.5],
    "top_ids": [[1, 2], [3, 4]],
    "prompt_top_logprobs": [None, [-0.25, -0.5]],
    "scored": [True, False],
}
EMPTY = {
    **FULL,
    "row": 8,
    **{name: np.zeros((0, 2)[: 1 + ("top" in name)], FULL[name].dtype) for name in FULL if isinstance(FULL[name], np.ndarray)},
}


def test_every_column_type():
    batch = record_batch(SCHEMA, [FULL, {"row": 9}, EMPTY])
    batch.validate(full=True)
    full, bare, empty = batch.to_pylist()
    assert full == EXPECTED
    assert bare == {**dict.fromkeys(SCHEMA.names), "row": 9}
    assert (empty["logprobs"], empty["prompt_logprobs"]) == ([], [None])
    assert (empty["top_ids"], empty["prompt_top_logprobs"]) == ([], [None])


def test_no_records_make_an_empty_batch():
    assert record_batch(SCHEMA, []).num_rows == 0


def test_missing_and_varying_input_values():
    rows = [{"answer": value} for value in ("text", 3, [1], None)] + [{}]
    batch = record_batch(SCHEMA, [{"input": row} for row in rows])
    answers = batch.column("input").field("answer").to_pylist()
    assert [json.loads(text) for text in answers[:3]] == ["text", 3, [1]]
    assert answers[3:] == [None, None]
    assert batch.column("input").null_count == 0


@given(st.lists(st.none() | hnp.arrays(np.float32, st.integers(0, 5)), max_size=6), st.booleans())
def test_lists_of_any_lengths(arrays: list[Any], leading: bool):
    field = pa.field("x", FLOATS, metadata=LEADING_NULL if leading else None)
    found = record_batch(pa.schema([field]), [{"x": array} for array in arrays])
    found.validate(full=True)
    expected = [None if array is None else [None] * leading + array.tolist() for array in arrays]
    np.testing.assert_equal(found.column("x").to_pylist(), expected)  # NaN equals NaN here


@given(st.lists(st.none() | hnp.arrays(np.int32, st.tuples(st.integers(0, 4), st.integers(0, 3))), max_size=5), st.booleans())
def test_nested_lists_of_any_shapes(arrays: list[Any], leading: bool):
    field = pa.field("x", pa.list_(pa.list_(pa.int32())), metadata=LEADING_NULL if leading else None)
    found = record_batch(pa.schema([field]), [{"x": array} for array in arrays])
    found.validate(full=True)
    assert found.column("x").to_pylist() == [None if array is None else [None] * leading + array.tolist() for array in arrays]


@given(st.lists(st.none() | hnp.arrays(np.bool_, st.integers(0, 6)), max_size=5), st.integers(0, 3))
def test_lists_with_nulls_in_any_place(there: list[Any], k: int):
    flat = [None if t is None else Masked(np.arange(t.sum(), dtype=np.float32), t) for t in there]
    nested = [None if m is None else Masked(np.repeat(m.values[:, None], k, axis=1).astype(np.int32), m.there) for m in flat]
    schema = pa.schema([("x", FLOATS), ("y", pa.list_(pa.list_(pa.int32())))])
    found = record_batch(schema, [{"x": x, "y": y} for x, y in zip(flat, nested, strict=True)])
    found.validate(full=True)
    for column, one in (("x", float), ("y", lambda value: [int(value)] * k)):
        left = [iter(range(len(t))) if t is not None else iter(()) for t in there]
        wanted = [None if t is None else [one(next(n)) if x else None for x in t] for t, n in zip(there, left, strict=True)]
        assert found.column(column).to_pylist() == wanted


def test_lists_of_unlike_lengths_in_one_record():
    lists = [np.array([1, 2], np.int32), np.array([], np.int32), np.array([3], np.int32)]
    found = record_batch(pa.schema([("x", pa.list_(pa.list_(pa.int32())))]), [{"x": lists}, {"x": None}, {"x": []}])
    assert found.column("x").to_pylist() == [[[1, 2], [], [3]], None, []]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"row": 4, "input": {"meta": {"id": "x"}}}, r"row 4: column 'input\.meta'"),
        ({"row": 4, "input": {"question": "\ud800"}}, r"row 4: column 'input\.question'"),
        ({"row": 4, "input": "text"}, r"row 4: column 'input'"),
        ({"row": 4, "sample": 2**40}, "row 4: column 'sample'"),
        ({"row": 4, "logprobs": np.zeros((2, 2))}, "row 4: column 'logprobs'.*1 dimensions"),
        (
            {"row": 4, "logprobs": Masked(np.zeros(2, np.float32), np.array([True, False]))},
            "row 4: column 'logprobs'.*expected 1 non-null values",
        ),
        ({"row": 4, "completion_ids": np.array([2**40])}, "row 4: column 'completion_ids'"),
        ({"row": 4, "logprob": 1.0}, r"row 4: no column for \['logprob'\]"),
    ],
)
def test_what_does_not_fit_names_row_and_column(record: dict[str, Any], named: str):
    with pytest.raises(ValueError, match=named):
        record_batch(SCHEMA, [{"row": 3}, record])


def test_record_bytes_counts_text_and_arrays():
    assert record_bytes({"row": 1, "text": "abcd", "ids": np.zeros(3, np.int32), "input": {"q": "xy"}}) == 8 + 4 + 12 + 2
    assert record_bytes({"x": Masked(np.zeros(3, np.int32), np.ones(3, np.bool_)), "y": [np.zeros(2, np.int32)] * 3}) == 12 + 24


def test_datasets_reads_the_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    for number, records in enumerate(([FULL, {"row": 9}], [])):
        with pa.ipc.new_file(os.fspath(tmp_path / f"part-{number}.arrow"), SCHEMA) as sink:
            if records:
                sink.write_batch(record_batch(SCHEMA, records))
    found = datasets.load_dataset("arrow", data_files=str(tmp_path / "*.arrow"), cache_dir=str(tmp_path / "cache"), split="train")
    assert found.to_list()[0] == EXPECTED
    assert found[1]["logprobs"] is None


def test_lists_of_one_length_come_from_arrays():
    for number, vectors in (
        (pa.float32(), np.array([[1.5, -2.0, 0.0], [3.0, 4.0, -np.inf]], np.float32)),
        (pa.float16(), np.array([[1.5, -2.0, 0.0], [3.0, 4.0, 65504.0]], np.float16)),
        (pa.int8(), np.array([[-128, 0, 127], [1, 2, 3]], np.int8)),
        (pa.uint8(), np.array([[0, 128, 255], [1, 2, 3]], np.uint8)),
    ):
        schema = pa.schema([pa.field("v", pa.list_(number, 3), metadata={b"normalized": b"1"}), ("vs", pa.list_(pa.list_(number, 3)))])
        batch = record_batch(schema, [{"v": vectors[0], "vs": vectors}, {"v": None, "vs": vectors[:0]}, {"v": vectors[1], "vs": None}])
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert batch.column("v").to_pylist() == [vectors[0].tolist(), None, vectors[1].tolist()]
        assert batch.column("vs").to_pylist() == [vectors.tolist(), [], None]
        assert np.array_equal(batch.column("v").take([0, 2]).flatten().to_numpy(zero_copy_only=False), vectors.ravel())


def test_a_vector_that_does_not_fit_is_named():
    schema = pa.schema([("row", pa.int64()), ("v", pa.list_(pa.int8(), 2))])
    fitting = {"row": 0, "v": np.array([1, 2], np.int8)}
    for wrong in (np.array([1, 2, 3], np.int8), np.array([1.0, 2.0], np.float32), np.array([[1, 2]], np.int8)):
        with pytest.raises(ValueError, match=r"row 7: column 'v'.*expected an array of 2 numbers of type int8, got"):
            record_batch(schema, [fitting, {"row": 7, "v": wrong}])
