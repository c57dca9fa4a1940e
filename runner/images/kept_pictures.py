"""What records keep of columns with pictures: in the place of a picture's bytes the sha256 of them, and everything else as it is.

Records would else hold each picture once a sample. A column that ``data.keep`` names is kept whole: that is no surprise.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pyarrow as pa

from ...configs.schema import JobConfig
from .row_pictures import messages_column
from .sources import data_url_bytes

_URL = re.compile(r"data:image/[\w.+-]+(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=_%-]{64,}", re.IGNORECASE)


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
    """Returns a value with ``sha256:…`` in the place of bytes and of data URLs of pictures, however deep they lie.

    least: shorter bytes stay.
    """
    if isinstance(value, bytes):
        return f"sha256:{sha256(value).hexdigest()}" if len(value) >= least else value
    if isinstance(value, str):
        return _URL.sub(_digest_of_url, value) if "base64," in value else value
    if isinstance(value, Mapping):
        return {name: without_bytes(inner, least) for name, inner in value.items()}
    return [without_bytes(inner, least) for inner in value] if isinstance(value, list) else value


def _digest_of_url(found: re.Match[str]) -> str:
    try:
        data = data_url_bytes(found[0], "")
    except Exception:  # broken, and shown by the row's error
        data = found[0].encode()
    return f"sha256:{sha256(data).hexdigest()}"


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
