"""Tests Arrow values as JSON texts: parsing them gives back the values."""

import datetime
import decimal
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.jobs.export.json_arrays import count_not_finite, json_texts

FLOATS = st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False)
NESTED = pa.struct([("a b", pa.list_(pa.list_(pa.float32()))), ('q"é', pa.large_string()), ("n", pa.struct([("i", pa.int64())]))])
VALUES = st.none() | st.fixed_dictionaries(
    {
        "a b": st.none() | st.lists(st.none() | st.lists(FLOATS, max_size=4), max_size=4),
        'q"é': st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        "n": st.none() | st.fixed_dictionaries({"i": st.none() | st.integers(-(2**63), 2**63 - 1)}),
    }
)


def parsed(array: pa.Array) -> list[Any]:
    return [json.loads(text) for text in json_texts(array).to_pylist()]


@settings(deadline=None)  # a shared machine is slow at times
@given(st.lists(VALUES, max_size=6), st.integers(0, 3))
def test_parsing_gives_back_the_values(values: list[Any], start: int):
    array = pa.array(values, NESTED).slice(start)
    assert pa.array(parsed(array), NESTED).equals(array)  # float32 again: the texts are its shortest


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1.0, pa.float32(), "1.0"),
        (-0.1, pa.float32(), "-0.1"),  # and not the 17 digits of the float64 next to it
        (1e20, pa.float64(), "1e+20"),
        (-0.0, pa.float64(), "-0.0"),
        (math.inf, pa.float64(), "null"),
        (math.nan, pa.float32(), "null"),
        (2**64 - 1, pa.uint64(), "18446744073709551615"),
        (True, pa.bool_(), "true"),
        ("\x1b\n\u2028é", pa.string(), '"\\u001b\\n\u2028é"'),
        (b"\xff", pa.binary(), '"/w=="'),
        (datetime.date(2024, 2, 29), pa.date32(), '"2024-02-29"'),
        (decimal.Decimal("1.50"), pa.decimal128(5, 2), '"1.50"'),
        ([1, None], pa.list_(pa.int8(), 2), "[1,null]"),
        ([1], pa.large_list(pa.int8()), "[1]"),
        ([("k", 1)], pa.map_(pa.string(), pa.int8()), '[["k", 1]]'),
        ({}, pa.struct([]), "{}"),
        (None, pa.null(), "null"),
        (np.float16(0.5), pa.float16(), "0.5"),
    ],
)
def test_a_value_of_each_type(value: Any, kind: pa.DataType, text: str):
    assert json_texts(pa.array([value, None], kind)).to_pylist() == [text, "null"]


def test_values_under_a_null_list_are_left_out():
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    assert json_texts(lists).to_pylist() == ["null", "[3]"]


def test_numbers_that_json_does_not_know_are_counted_wherever_they_are():
    values = [{"x": math.nan, "y": [[math.inf], None, [1.0]]}, None, {"x": None, "y": None}]
    kind = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.list_(pa.float32()))), ("z", pa.int8())])
    assert count_not_finite(pa.array(values, kind)) == 2
    assert parsed(pa.array(values, kind))[0] == {"x": None, "y": [[None], None, [1.0]], "z": None}
