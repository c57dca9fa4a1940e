"""What types the input's columns have: seen in JSON values, declared by tables, unified over all files.

A column whose type varies, or that Arrow cannot hold, is kept as JSON text: a large_string field with the metadata
``json: 1``. Strings are large_string at the top and string inside lists and structs. Does not know where rows come from.
"""

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

JSON_METADATA = {b"json": b"1"}
MAX_FIELDS = 128  # a dict with more distinct keys is a mapping, not a struct
MAX_NESTING = 32  # Arrow IPC readers refuse more than 64
EXACT = 1 << 53  # integers up to here are exact as float64


class VariesError(Exception):
    """There is no one Arrow type for these values."""


@dataclass(slots=True)
class ValueShape:
    """The union of the JSON values seen at one place: kinds of scalars and containers, and what stands inside these."""

    kinds: set[type] = field(default_factory=set[type])
    wide: bool = False
    huge: bool = False
    fields: "dict[str, ValueShape]" = field(default_factory=dict[str, "ValueShape"])
    items: "ValueShape | None" = None

    def see(self, value: object, level: int = 0) -> None:
        """Takes one more value (bool, int, float, str, list, dict or None) into the union."""
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
        """What can no longer be told apart need not be remembered: memory stays bounded."""
        self.huge, self.fields, self.items = True, {}, None

    def arrow(self) -> pa.DataType:
        """The Arrow type of the values seen, nested strings as ``string``; null where none was seen. Raises VariesError."""
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
            found = scalars.get(next(iter(self.kinds)))
            if found is not None:
                return found
        raise VariesError


@dataclass(slots=True)
class Column:
    """What has been seen of one column: rows that have it non-null, JSON values, and the types tables declare for it."""

    present: int = 0
    shape: ValueShape = field(default_factory=ValueShape)
    declared: list[pa.DataType] = field(default_factory=list[pa.DataType])

    def declare(self, declared: pa.DataType) -> None:
        """Takes the type of one more table into account."""
        if declared not in self.declared:
            self.declared.append(declared)

    def field(self, name: str) -> pa.Field:
        """The column as an Arrow field: one type for all its values, or JSON text."""
        try:
            types = [_plain(found) for found in self.declared] + ([self.shape.arrow()] if self.shape.kinds else [])
            if self.shape.wide and any(map(pa.types.is_floating, types)):
                raise VariesError
            return pa.field(name, _top(_readable(_unify(types))))
        except VariesError:
            return pa.field(name, pa.large_string(), metadata=JSON_METADATA)


def json_text(value: Any) -> str:
    """Any column value as JSON: bytes in base64, dates and decimals as their strings."""
    return json.dumps(value, ensure_ascii=False, default=_scalar_text)


def _scalar_text(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _unify(types: Iterable[pa.DataType]) -> pa.DataType:
    try:
        schemas = [pa.schema([pa.field("", found)]) for found in types]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type if schemas else pa.null()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise VariesError from None


def _plain(found: pa.DataType) -> pa.DataType:
    """The type without encodings that only some readers know: dictionaries, runs, views, 64-bit offsets, extensions."""
    types = pa.types
    if isinstance(found, pa.BaseExtensionType):
        return _plain(found.storage_type)
    if types.is_dictionary(found) or types.is_run_end_encoded(found):
        return _plain(found.value_type)
    if types.is_large_string(found) or types.is_string_view(found):
        return pa.string()
    if types.is_binary_view(found):
        return pa.binary()
    if types.is_fixed_size_list(found):
        return pa.list_(_plain(found.value_type), found.list_size)
    if types.is_list(found) or types.is_large_list(found) or types.is_list_view(found) or types.is_large_list_view(found):
        return pa.list_(_plain(found.value_type))
    if types.is_struct(found):
        return pa.struct([pa.field(inner.name, _plain(inner.type)) for inner in found])
    if types.is_map(found):
        return pa.map_(_plain(found.key_type), _plain(found.item_type))
    if types.is_union(found):
        raise VariesError
    return found


def _readable(found: pa.DataType) -> pa.DataType:
    """null becomes string, which every reader can hold; a struct without fields cannot be helped. Raises VariesError."""
    types = pa.types
    if types.is_null(found):
        return pa.string()
    if types.is_struct(found):
        if not found.num_fields:
            raise VariesError
        return pa.struct([pa.field(inner.name, _readable(inner.type)) for inner in found])
    if types.is_list(found):
        return pa.list_(_readable(found.value_type))
    return found


def _top(found: pa.DataType) -> pa.DataType:
    return pa.large_string() if pa.types.is_string(found) else found
