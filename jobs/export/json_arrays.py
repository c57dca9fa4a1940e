"""Converts Arrow arrays to JSON texts, one a value, without a Python loop over numbers.

Numbers are the shortest that read back as the same number of their own width: a float32 has at most nine digits. Knows no files
and no columns of ours.
"""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ...runner.data.type_inference import json_text

pc: Any = pyarrow.compute  # its functions come to be when it is imported: a type checker sees none
_NULL = "null"


def json_texts(values: pa.Array) -> pa.StringArray:
    """Returns each of the values [N] as a JSON text [N]; a null is ``null``.

    NaN and the infinities, which JSON lacks, are null too (``count_not_finite`` counts them). Structs become objects, lists arrays;
    other types are as in ``type_inference.json_text``.
    """
    kind, types = values.type, pa.types
    if types.is_struct(kind) and kind.num_fields:
        texts = _objects(values)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        texts = _arrays(values)
    elif types.is_float32(kind) or types.is_float64(kind):
        finite = pc.if_else(pc.is_finite(values), values, None)
        # A whole number keeps its point: readers that infer types from the first rows would take it for an integer.
        texts = pc.replace_substring_regex(pc.cast(finite, pa.string()), r"^(-?\d+)$", r"\1.0")
    elif types.is_integer(kind) or types.is_boolean(kind):
        texts = pc.cast(values, pa.string())
    else:
        texts = pa.array([None if value is None else json_text(value) for value in values.to_pylist()], pa.string())
    return pc.fill_null(texts, _NULL)


def count_not_finite(values: pa.Array) -> int:
    """Counts the numbers among the values, also in lists and structs, that are NaN or infinite."""
    kind, types = values.type, pa.types
    if types.is_struct(kind):
        return sum(count_not_finite(child) for child in values.flatten())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return count_not_finite(values.flatten())
    return int(pc.sum(pc.invert(pc.is_finite(values))).as_py() or 0) if types.is_floating(kind) else 0


def _objects(values: pa.StructArray) -> pa.Array:
    pieces: list[pa.Array | str] = []
    for field, child in zip(values.type, values.flatten(), strict=True):
        pieces += [f"{',' if pieces else '{'}{json.dumps(field.name, ensure_ascii=False)}:", json_texts(child)]
    return pc.if_else(values.is_valid(), pc.binary_join_element_wise(*pieces, "}", ""), None)


def _arrays(values: pa.Array) -> pa.Array:
    """Joins each list's texts. ``flatten`` skips the values of a null list, so offsets are counted from lengths."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, json_texts(values.flatten())), ",")
    return pc.if_else(values.is_valid(), pc.binary_join_element_wise("[", joined, "]", ""), None)
