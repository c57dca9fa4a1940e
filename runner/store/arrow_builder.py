"""Builds Arrow arrays from records: one column builder per Arrow type, NumPy arrays into lists without Python per element.

The schema decides everything; no job kind is known here. Two field metadata say what a type cannot: ``json`` (a value of any type,
kept as JSON text) and ``leading_null`` (a list whose first element is null, which is added here). Lists with nulls in other places
are given as ``Masked``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..data.type_inference import json_text

LEADING_NULL = {b"leading_null": b"1"}

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(slots=True, frozen=True)
class Masked:
    """A list of T elements, of which N have a value and the others are null. values: [N], or [N, k] for a list of lists; there: [T].

    values  a b        there  . x . x        list  null a null b
    """

    values: NDArray[Any]
    there: NDArray[np.bool_]


def record_batch(schema: pa.Schema, records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Builds one batch of ``schema`` from the records. A column that a record lacks is null there.

    Records hold lists of numbers as arrays [N], lists of such lists as arrays [N, k] (of different lengths: as a list of arrays),
    lists of one length D as arrays [D], all but those as ``Masked`` where elements are null, and the ``input`` struct as the row's columns.
    Raises ValueError that names the row and column of a value that does not fit, or a key that has no column.
    """
    names = set(schema.names)
    for record in records:
        if unknown := record.keys() - names:
            raise ValueError(f"row {record.get('row')}: no column for {sorted(unknown)}; the schema has {', '.join(schema.names)}")
    columns = [_named_column(field, [record.get(field.name) for record in records], records) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_bytes(record: dict[str, Any]) -> int:
    """Estimates the bytes of a record. A value that is neither text nor an array counts 8."""
    return sum(_value_bytes(value) for value in record.values())


def _value_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Masked):
        return value.values.nbytes
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_value_bytes, value))
    return record_bytes(value) if isinstance(value, dict) else 8


def _named_column(field: pa.Field, values: list[Any], records: Sequence[dict[str, Any]]) -> pa.Array:
    try:
        return _column(field, values)
    except _MISFITS as error:
        for value, record in zip(values, records, strict=True):
            if not _fits(field, value):
                raise ValueError(f"row {record.get('row')}: column {_misfit(field, value)} cannot hold a value: {error}") from error
        raise ValueError(f"column {field.name!r} ({field.type}): {error}") from error


def _fits(field: pa.Field, value: Any) -> bool:
    try:
        _column(field, [value])
    except _MISFITS:
        return False
    return True


def _misfit(field: pa.Field, value: Any) -> str:
    """Returns name and type of the column, or of the struct's field, that ``value`` does not fit."""
    if pa.types.is_struct(field.type) and isinstance(value, dict):
        for child in field.type:
            if not _fits(child, value.get(child.name)):
                return f"{field.name + '.' + child.name!r} ({child.type})"
    return f"{field.name!r} ({field.type})"


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    metadata = field.metadata or {}
    if b"json" in metadata:
        values = [None if value is None else json_text(value) for value in values]
    if pa.types.is_struct(field.type) and field.type.num_fields:
        return _struct(field.type, values)
    if any(isinstance(value, np.ndarray | Masked) for value in values):
        if pa.types.is_fixed_size_list(field.type):
            return _vectors(field.type, values)
        if pa.types.is_list(field.type):
            return _list(field.type, values, b"leading_null" in metadata)
    return pa.array(values, type=field.type)


def _struct(type_: pa.StructType, values: list[Any]) -> pa.Array:
    """Builds structs from dicts; None is a null struct. Keys without a field are columns that are not kept."""
    rows = [{} if value is None else value for value in values]
    if wrong := [row for row in rows if not isinstance(row, dict)]:
        raise TypeError(f"expected an object, got {type(wrong[0]).__name__}")
    children = [_column(child, [row.get(child.name) for row in rows]) for child in type_]
    absent = pa.array([value is None for value in values], type=pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=absent)


def _list(type_: pa.ListType, values: list[NDArray[Any] | Masked | None], leading: bool) -> pa.Array:
    """Builds lists from arrays [N], or lists of lists from arrays [N, k]; None is a null list.

    A leading null (.) before arrays of lengths 2 and 1:   values   . a b . c
                                                           offsets  0     3   5
    """
    absent = np.array([value is None for value in values], dtype=bool)
    present = [_masked(value, leading) for value in values if value is not None]
    nested = pa.types.is_list(type_.value_type) or pa.types.is_fixed_size_list(type_.value_type)
    if wrong := [value.values.shape for value in present if value.values.ndim != 1 + nested]:
        raise ValueError(f"expected an array of {1 + nested} dimensions, got shape {wrong[0]}")
    if wrong := [value for value in present if len(value.values) != np.count_nonzero(value.there)]:
        raise ValueError(f"expected {np.count_nonzero(wrong[0].there)} non-null values, got {len(wrong[0].values)}")
    lengths = np.zeros(len(values), dtype=np.int64)
    lengths[~absent] = [len(value.there) for value in present]
    empty = ~np.concatenate([np.zeros(0, dtype=bool), *(value.there for value in present)])
    arrays = [value.values for value in present]
    if pa.types.is_fixed_size_list(type_.value_type):
        items = _vectors(type_.value_type, [vector for array in arrays for vector in array])
    else:
        items = _inner_lists(type_.value_type, arrays, empty) if nested else _scalars(type_.value_type, arrays, empty)
    return _list_array(type_, _offsets(lengths), items, absent)


def _vectors(type_: pa.FixedSizeListType, values: list[NDArray[Any] | None]) -> pa.Array:
    """Builds lists of one length D from arrays [D]; None is a null list, whose numbers are 0."""
    size, number = type_.list_size, np.dtype(type_.value_type.to_pandas_dtype())
    if wrong := [value for value in values if value is not None and (value.shape != (size,) or not np.can_cast(value.dtype, number))]:
        raise ValueError(f"expected an array of {size} numbers of type {type_.value_type}, got {wrong[0].dtype} of shape {wrong[0].shape}")
    flat = np.zeros((len(values), size), number)
    for place, value in enumerate(values):
        if value is not None:
            flat[place] = value
    absent = np.array([value is None for value in values], bool)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), type=type_, mask=pa.array(absent) if absent.any() else None)


def _masked(value: NDArray[Any] | Masked, leading: bool) -> Masked:
    if isinstance(value, Masked):
        return value
    there = np.ones(len(value) + leading, dtype=bool)
    there[:leading] = False
    return Masked(value, there)


def _scalars(type_: pa.DataType, arrays: list[NDArray[Any]], empty: NDArray[np.bool_]) -> pa.Array:
    """Puts the arrays' elements one after another into the places that are not ``empty``. Those are null."""
    flat = _flat(type_, arrays)
    if not empty.any():
        return pa.array(flat, type=type_)
    spread = np.zeros(len(empty), dtype=flat.dtype)
    spread[~empty] = flat
    return pa.array(spread, type=type_, mask=empty)


def _inner_lists(type_: pa.ListType, arrays: list[NDArray[Any]], empty: NDArray[np.bool_]) -> pa.Array:
    widths = np.zeros(len(empty), dtype=np.int64)
    widths[~empty] = np.repeat([array.shape[1] for array in arrays], [array.shape[0] for array in arrays])
    flat = _flat(type_.value_type, [array.ravel() for array in arrays])
    return _list_array(type_, _offsets(widths), pa.array(flat, type=type_.value_type), empty)


def _flat(type_: pa.DataType, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    filled = [array for array in arrays if array.size]
    return np.concatenate(filled) if filled else np.zeros(0, dtype=type_.to_pandas_dtype())


def _list_array(type_: pa.ListType, offsets: NDArray[np.int64], items: pa.Array, absent: NDArray[np.bool_]) -> pa.Array:
    mask = pa.array(absent) if absent.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), items, type=type_, mask=mask)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
