"""Infers the types of the input's columns, from JSON values and from the types that tables declare, over all files.

A column of varying types, or of a type that Arrow can't hold, is kept as JSON text: a large_string field with the metadata
``json: 1``. Strings are large_string at the top and string inside lists and structs. Knows no files.
"""

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

JSON_METADATA = {b"json": b"1"}
MAX_FIELDS = 128  # a dict with more distinct keys is a mapping, not a struct
MAX_NESTING = 32  # Arrow IPC readers refuse more than 64
EXACT = 1 << 53  # integers up to here are exact as float64


class VariesError(Exception):
    """Raised when no single Arrow type holds these values."""


@dataclass(slots=True)
class ValueShape:
    """The union of the JSON values seen at one place: the kinds of scalars and containers, and the contents of containers."""

    kinds: set[type] = field(default_factory=set[type])
    wide: bool = False
    huge: bool = False
    fields: "dict[str, ValueShape]" = field(default_factory=dict[str, "ValueShape"])
    items: "ValueShape | None" = None

    def see(self, value: object, level: int = 0) -> None:
        """Adds one value (bool, int, float, str, list, dict or None) to the union."""
        if value is None or self.huge:
            return
        self.kinds.add(type(value))
        if isinstance(value, dict):
            self._see_fields(value, level)
        elif isinstance(value, list):
            self._see_items(value, level)
        elif type(value) is int:
            self._see_range(value, value)

    def _see_fields(self, value: dict[str, object], level: int) -> None:
        if level > MAX_NESTING:
            self._give_up()
            return
        for name, inner in value.items():
            self.fields.setdefault(name, ValueShape()).see(inner, level + 1)
        if len(self.fields) > MAX_FIELDS:
            self._give_up()

    def _see_items(self, value: list[object], level: int) -> None:
        if level > MAX_NESTING:
            self._give_up()
            return
        items = self.items = self.items or ValueShape()
        if set(map(type, value)) <= {str, float, bool}:
            items.kinds.update(map(type, value))
        else:
            for inner in value:
                items.see(inner, level + 1)

    def _see_range(self, low: int, high: int) -> None:
        self.wide = self.wide or low < -EXACT or high > EXACT
        self.huge = self.huge or low < -(1 << 63) or high >= 1 << 63

    def _give_up(self) -> None:
        """Marks the type as varying, and forgets the details: memory stays bounded."""
        self.huge, self.fields, self.items = True, {}, None

    def arrow(self) -> pa.DataType:
        """Returns the Arrow type of the values seen, with nested strings as ``string``; null if none was seen. Raises VariesError."""
        if self.huge or (self.kinds == {int, float} and self.wide):
            raise VariesError
        if not self.kinds:
            return pa.null()
        if self.kinds == {dict} and self.fields:
            return pa.struct([(name, inner.arrow()) for name, inner in self.fields.items()])
        if self.kinds == {list}:
            return pa.list_(self.items.arrow() if self.items else pa.null())
        if self.kinds in ({int, float}, {float}):
            return pa.float64()
        if len(self.kinds) == 1:
            scalars = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
            scalar = scalars.get(next(iter(self.kinds)))
            if scalar is not None:
                return scalar
        raise VariesError


@dataclass(slots=True)
class Column:
    """One column as seen so far. present: rows where it is not null; shape: of its JSON values; declared: types that tables declare."""

    present: int = 0
    shape: ValueShape = field(default_factory=ValueShape)
    declared: list[pa.DataType] = field(default_factory=list[pa.DataType])

    def declare(self, declared: pa.DataType) -> None:
        """Adds the type that one more table declares."""
        if declared not in self.declared:
            self.declared.append(declared)

    def field(self, name: str) -> pa.Field:
        """Returns the column as an Arrow field: one type for all its values, or JSON text."""
        try:
            types = [_plain(declared) for declared in self.declared] + ([self.shape.arrow()] if self.shape.kinds else [])
            if self.shape.wide and any(map(pa.types.is_floating, types)):
                raise VariesError
            return pa.field(name, _top(_readable(_unify(types))))
        except VariesError:
            return pa.field(name, pa.large_string(), metadata=JSON_METADATA)


def json_text(value: Any) -> str:
    """Returns any column value as JSON: bytes in base64; dates, decimals, and numbers that JSON lacks as strings ("Infinity", "NaN")."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_scalar_text, allow_nan=False)
    except ValueError:
        return json.dumps(_named_numbers(value), ensure_ascii=False, default=_scalar_text)


def _named_numbers(value: Any) -> Any:
    """Returns a value with the names of its numbers that are not finite in their places."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {name: _named_numbers(one) for name, one in cast("Mapping[str, Any]", value).items()}
    return [_named_numbers(one) for one in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def _scalar_text(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _unify(types: Iterable[pa.DataType]) -> pa.DataType:
    try:
        schemas = [pa.schema([pa.field("", each)]) for each in types]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type if schemas else pa.null()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise VariesError from None


def _plain(type_: pa.DataType) -> pa.DataType:
    """Returns the type without encodings that only some readers know: dictionaries, runs, views, 64-bit offsets, extensions."""
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(type_.storage_type)
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_):
        return _plain(type_.value_type)
    if types.is_large_string(type_) or types.is_string_view(type_):
        return pa.string()
    if types.is_binary_view(type_):
        return pa.binary()
    if types.is_fixed_size_list(type_):
        return pa.list_(_plain(type_.value_type), type_.list_size)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_list_view(type_) or types.is_large_list_view(type_):
        return pa.list_(_plain(type_.value_type))
    if types.is_struct(type_):
        return pa.struct([pa.field(inner.name, _plain(inner.type)) for inner in type_])
    if types.is_map(type_):
        return pa.map_(_plain(type_.key_type), _plain(type_.item_type))
    if types.is_union(type_):
        raise VariesError
    return type_


def _readable(type_: pa.DataType) -> pa.DataType:
    """Returns the type with null replaced by string, which every reader can hold. Raises VariesError for a struct without fields."""
    types = pa.types
    if types.is_null(type_):
        return pa.string()
    if types.is_struct(type_):
        if not type_.num_fields:
            raise VariesError
        return pa.struct([pa.field(inner.name, _readable(inner.type)) for inner in type_])
    if types.is_list(type_):
        return pa.list_(_readable(type_.value_type))
    return type_


def _top(type_: pa.DataType) -> pa.DataType:
    return pa.large_string() if pa.types.is_string(type_) else type_
