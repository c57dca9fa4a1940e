"""What records keep of columns with pictures."""

import json
from base64 import b64encode, encodebytes
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.images.kept_pictures import kept_columns, kept_type
from mlx_bulk.runner.images.sources import PictureSources
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


RAW = b64encode(PNG).decode()
LINES = encodebytes(PNG).decode()
WRITTEN = [
    f"data:image/png;base64,{RAW}",
    f"data:image/png;base64,{LINES}",
    f"data:image/png;base64,\n{LINES}".replace("\n", "\r\n"),
    f"data:;base64,{RAW}",
    f"data:application/octet-stream;base64,{RAW}",
    f"DATA:image/PNG;BASE64,{RAW}",
    f"data:image/png;name=a b.png;base64,{RAW}",
    f"data:image/png;base64, {RAW}",
    f"  data:image/png;base64,{RAW}\n",
    "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
    f"data:image/png;base64,{quote(RAW, safe='')}",
]


@pytest.mark.parametrize("url", WRITTEN)
def test_what_is_read_as_a_picture_is_kept_as_its_digest(url: str, tmp_path: Path) -> None:
    assert PictureSources((tmp_path,), fetch=False).source(url, "image", tmp_path).read() == PNG
    assert kept_columns({"image": url}, config(user="x", images="image")) == {"image": DIGEST}
    chat = [{"role": "user", "content": [{"type": "text", "text": "data:, é 1.0"}, {"type": "image_url", "image_url": {"url": url}}]}]
    shown = [{"role": "user", "content": [{"type": "text", "text": "data:, é 1.0"}, {"type": "image_url", "image_url": {"url": DIGEST}}]}]
    assert kept_columns({"m": chat}, config(messages="m")) == {"m": shown}
    for written in (json.dumps(chat), json.dumps(chat, indent=1).replace("/", "\\/")):
        kept = kept_columns({"m": written}, config(messages="m"))["m"]
        assert json.loads(kept) == shown
        assert RAW[:20] not in kept
        assert "\\u00e9 1.0" in kept, "what is no picture stays as it was written"


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RAW}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DIGEST}},
        ),
        ({"type": "image", "base64": LINES}, {"type": "image", "base64": DIGEST}),
        ({"type": "image", "source": {"type": "url", "url": "a.png"}}, {"type": "image", "source": {"type": "url", "url": "a.png"}}),
    ],
)
def test_parts_with_base64_alone_are_kept_as_digests(part: dict[str, Any], shown: dict[str, Any]) -> None:
    chat, kept = [{"role": "user", "content": [part]}], [{"role": "user", "content": [shown]}]
    assert kept_columns({"m": chat}, config(messages="m")) == {"m": kept}
    assert json.loads(kept_columns({"m": json.dumps(chat)}, config(messages="m"))["m"]) == kept


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO"])
def test_base64_without_a_url_is_a_digest_too(form: str) -> None:
    data = picture_bytes(drawn(64, 64), form)
    shown = json.loads(row_failure(Row(0, "0", {"image": b64encode(data).decode()}), "image", "RowError", "no").input)
    assert shown == {"image": f"sha256:{sha256(data).hexdigest()}"}


@pytest.mark.parametrize(
    "text", ["data: 1, 2 and 3" * 9, "a" * 5000, "data:text/plain;base64," + "aGk" * 99, '{"a": [1.0, 1e5]}' + " " * 99, "iVBOR " * 40]
)
def test_other_text_is_kept_as_it_is(text: str) -> None:
    assert kept_columns({"image": text}, config(user="x", images="image")) == {"image": text}


def test_a_picture_inside_a_text_leaves_the_words_around_it() -> None:
    for url in WRITTEN[:8] + WRITTEN[9:]:
        kept = kept_columns({"image": f"See ![it]({url.rstrip()}) and\nthis"}, config(user="x", images="image"))
        assert kept == {"image": f"See ![it]({DIGEST}) and\nthis"}, url
        begins = kept_columns({"image": f"{url.strip()}\nSay what it is."}, config(user="x", images="image"))
        assert begins == {"image": f"{DIGEST}\nSay what it is."}, url


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
