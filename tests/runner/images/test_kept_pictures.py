"""What records keep of columns with pictures."""

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.images.kept_pictures import kept_columns, kept_type
from mlx_bulk.runner.pipeline.job import row_failure

from ...vision_folders import data_url, drawn, picture_bytes

PNG = picture_bytes()
DIGEST = f"sha256:{sha256(PNG).hexdigest()}"
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def config(keep: Any = "all", **prompt: Any) -> GenerateConfig:
    values = {"job": "generate", "model": "demo", "data": {"path": "x", "keep": keep}, "prompt": prompt, "output": "out"}
    found = load_config(values)
    assert isinstance(found, GenerateConfig)
    return found


@pytest.mark.parametrize(
    ("type_", "kept", "value", "shown"),
    [
        (pa.binary(), pa.string(), PNG, DIGEST),
        (pa.large_string(), pa.large_string(), "a/b.png", "a/b.png"),
        (pa.large_string(), pa.large_string(), data_url(PNG), DIGEST),
        (
            IMAGE,
            pa.struct([("bytes", pa.string()), ("path", pa.string())]),
            {"bytes": PNG, "path": "b.png"},
            {"bytes": DIGEST, "path": "b.png"},
        ),
        (pa.list_(pa.binary()), pa.list_(pa.string()), [PNG, None], [DIGEST, None]),
        (pa.list_(IMAGE), pa.list_(pa.struct([("bytes", pa.string()), ("path", pa.string())])), None, None),
    ],
)
def test_digests_stand_in_the_place_of_bytes(type_: pa.DataType, kept: pa.DataType, value: Any, shown: Any) -> None:
    settings = config(user="{{ q }}", images="image")
    columns = pa.struct([("q", pa.large_string()), ("image", type_), ("raw", pa.binary())])
    found = kept_type(columns, settings)
    assert found == pa.struct([("q", pa.large_string()), ("image", kept), ("raw", pa.binary())])
    row = {"q": data_url(PNG), "image": value, "raw": PNG}
    assert kept_columns(row, settings) == {"q": data_url(PNG), "image": shown, "raw": PNG}
    pa.array([shown], kept)


def test_messages_keep_their_words() -> None:
    settings = config(messages="chat.turns")
    parts = [{"type": "text", "text": "base64, is it?"}, {"type": "image_url", "image_url": {"url": data_url(PNG)}}]
    kept = kept_columns({"chat": {"turns": [{"role": "user", "content": parts}]}}, settings)
    assert kept["chat"]["turns"][0]["content"] == [parts[0], {"type": "image_url", "image_url": {"url": DIGEST}}]
    as_json = kept_columns({"chat": f'[{{"url": "{data_url(PNG)}"}}]'}, settings)
    assert as_json == {"chat": f'[{{"url": "{DIGEST}"}}]'}


def test_a_column_that_the_user_names_is_kept_whole() -> None:
    settings = config(["image"], user="x", images="image")
    columns = pa.struct([("image", pa.binary())])
    assert kept_type(columns, settings) == columns
    assert kept_columns({"image": PNG}, settings) == {"image": PNG}


@pytest.mark.parametrize("stage", ["image", "too_long", "drop"])
def test_errors_hold_no_copies_of_files(stage: str) -> None:
    large = picture_bytes(drawn(200, 200))
    row = Row(0, "0", {"image": {"bytes": large}, "url": data_url(large), "id": b"short"})
    shown = json.loads(row_failure(row, stage, "RowError", "it fails").input)
    whole = f"sha256:{sha256(large).hexdigest()}"
    short = f"sha256:{sha256(b'short').hexdigest()}" if stage == "image" else b64encode(b"short").decode()
    assert shown == {"image": {"bytes": whole}, "url": whole, "id": short}
