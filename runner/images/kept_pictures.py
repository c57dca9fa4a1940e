"""What records keep of columns with pictures: in the place of a picture's bytes the sha256 of them, and everything else as it is.

Records would else hold each picture once a sample. A column that ``data.keep`` names is kept whole: that is no surprise.
"""

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import pyarrow as pa

from ...configs.schema import JobConfig
from ..templates.chat_messages import PICTURE_PARTS
from .content_parts import part_with_digest
from .data_urls import LEAST, digests_in_text
from .row_pictures import messages_column

_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')  # a string of JSON


def kept_type(kept: pa.StructType | None, config: JobConfig) -> pa.StructType | None:
    """Returns the type of the records' ``input`` where columns of pictures hold digests. kept: the type of the columns themselves."""
    named = _columns(config)
    if kept is None or not named:
        return kept
    fields = [kept.field(index) for index in range(kept.num_fields)]
    return pa.struct([field.with_type(_without_binary(field.type)) if field.name in named else field for field in fields])


def kept_columns(columns: dict[str, Any], config: JobConfig) -> dict[str, Any]:
    """Returns a row's columns as records keep them, with digests in the place of bytes and of data URLs."""
    named = _columns(config) & columns.keys()
    return {name: without_bytes(value) if name in named else value for name, value in columns.items()} if named else columns


def without_bytes(value: Any, least: int = 0) -> Any:
    """Returns a value with ``sha256:…`` in the place of bytes and of pictures that are written as text, however deep they lie.

    JSON text is else as it was. least: shorter bytes stay.
    """
    if isinstance(value, bytes):
        return f"sha256:{sha256(value).hexdigest()}" if len(value) >= least else value
    if isinstance(value, str):
        return _json_with_digests(value) or digests_in_text(value)
    if isinstance(value, Mapping):
        part = part_with_digest(dict(value)) if value.get("type") in PICTURE_PARTS else value
        return {name: without_bytes(inner, least) for name, inner in part.items()}
    return [without_bytes(inner, least) for inner in value] if isinstance(value, list) else value


def _json_with_digests(text: str) -> str | None:
    """Returns JSON text with digests in the place of pictures; None for other text."""
    if len(text) < LEAST or text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text)
        found = {old: new for old, new in zip(_strings(value), _strings(without_bytes(value)), strict=True) if old != new}
    except (ValueError, RecursionError):
        return None

    def written(literal: re.Match[str]) -> str:
        new = found.get(json.loads(literal[0], strict=False)) if len(literal[0]) > LEAST else None
        return literal[0] if new is None else json.dumps(new, ensure_ascii=False)

    return _LITERAL.sub(written, text) if found else text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _columns(config: JobConfig) -> set[str]:
    """Returns the columns in which pictures lie, where all columns are kept."""
    if config.data.keep != "all":
        return set()
    if config.data.format == "openai":
        return {"body"}
    paths = (config.prompt.images, messages_column(config))
    return {name for path in paths if path is not None for name in (path, path.split(".")[0])}


def _without_binary(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([inner.with_type(_without_binary(inner.type)) for inner in (kind.field(i) for i in range(kind.num_fields))])
    return pa.list_(_without_binary(kind.value_type)) if types.is_list(kind) or types.is_large_list(kind) else kind
