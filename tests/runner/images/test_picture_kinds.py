"""Pixels of odd pictures against transformers' own loader and processors: sizes, modes, EXIF, animations; and where ours differ."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.images.pictures import read_picture
from mlx_bulk.runner.images.processors import ImageProcessor, load_image_processor
from mlx_bulk.runner.text.tokenizer import load_tokenizer
from PIL import Image
from transformers.image_utils import load_image

from ...vision_folders import MARKS, drawn, family_of, picture_bytes, write_vision_folder
from .test_processors import CLASSES, QUICK, theirs

MOST = 10_000_000
SIZES = [(1, 1), (1, 2), (2, 3), (7, 1), (1, 50), (1, 1000), (1000, 1), (29, 31), (300, 17), (13, 401)]
Pair = tuple[str, ImageProcessor, Callable[[Any], Any]]  # of a model: its name, our processor, theirs
TOO_LONG = {"qwen": ("1 x 1000", "1000 x 1"), "pixtral": ("1 x 1000", "1000 x 1")}  # what the model's own processor refuses
SHALLOW = np.random.default_rng(0).integers(0, 256, (43, 61), dtype=np.uint8)
DEEP = np.random.default_rng(1).integers(0, 1 << 16, (43, 61), dtype=np.uint16)


def held(orientation: int) -> bytes:
    """A photo of a camera that was held in one of eight ways."""
    notes = Image.Exif()
    notes[0x0112] = orientation
    return picture_bytes(drawn(61, 43), "JPEG", exif=notes)


def animated(form: str) -> bytes:
    first, *others = (drawn(61, 43, shade).convert("P", palette=Image.Palette.ADAPTIVE) for shade in range(3))
    return picture_bytes(first, form, save_all=True, append_images=others)


ALIKE: dict[str, bytes] = {
    **{f"{width} x {height}": picture_bytes(drawn(width, height)) for width, height in SIZES},
    **{f"held in way {way}": held(way) for way in range(1, 9)},
    **{mode: picture_bytes(drawn(61, 43).convert(mode)) for mode in ("1", "L", "P", "RGBA", "LA")},
    "CMYK, JPEG": picture_bytes(drawn(61, 43).convert("CMYK"), "JPEG"),
    "CMYK, TIFF": picture_bytes(drawn(61, 43).convert("CMYK"), "TIFF"),
    "GIF": animated("GIF"),
    "WebP": animated("WEBP"),
}


def see_through(form: str = "RGBA") -> bytes:
    image = drawn(61, 43).convert("RGBA")
    image.putalpha(Image.fromarray(SHALLOW))
    return picture_bytes(image.convert(form))


def with_a_clear_color() -> bytes:
    image = drawn(61, 43).convert("P", palette=Image.Palette.ADAPTIVE)
    most = Counter(np.asarray(image).ravel().tolist()).most_common(1)[0][0]
    return picture_bytes(image, transparency=most)


def on_white(data: bytes) -> Image.Image:
    """By the definition of alpha, in float64."""
    whole = np.asarray(Image.open(BytesIO(data)).convert("RGBA")).astype(np.float64)
    alpha = whole[..., 3:] / 255
    return Image.fromarray(np.round(whole[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8))


def high_byte(data: bytes) -> Image.Image:
    return Image.fromarray((np.asarray(Image.open(BytesIO(data))).astype(np.int64) >> 8).astype(np.uint8)).convert("RGB")


# What transformers' loader drops (it cuts 16 bits at 255, and takes the hidden color below transparent parts), as docs/images.md says.
OURS: dict[str, tuple[bytes, Callable[[bytes], Image.Image]]] = {
    "transparent": (see_through(), on_white),
    "transparent gray": (see_through("LA"), on_white),
    "palette with a clear color": (with_a_clear_color(), on_white),
    "gray of 16 bits": (picture_bytes(Image.fromarray(DEEP)), high_byte),
}


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in CLASSES], name="pair"
)
def a_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Our processor of a model, and theirs."""
    folder = write_vision_folder(tmp_path_factory.mktemp(request.param) / "model", request.param)
    config = json.loads((folder / "config.json").read_text())
    hf = theirs(folder, request.param)
    ours = load_image_processor(folder, config, load_tokenizer(folder, None, {}, False).hf)
    return request.param, ours, lambda image: hf(text=[MARKS[family_of(request.param)]], images=[image], return_tensors="np")


def compare(ours: ImageProcessor, data: bytes, expected: Any) -> None:
    for name, values in ours.inputs(read_picture(data, "a", MOST), "a").items():
        np.testing.assert_allclose(values.astype(np.float64), np.asarray(expected[name]), rtol=0, atol=1e-6)


def test_pixels_of_all_pictures_are_those_of_transformers(pair: Pair) -> None:
    kind, ours, processed = pair
    for name, data in ALIKE.items():
        theirs_of = partial(processed, load_image(b64encode(data).decode()))
        if name in TOO_LONG.get(family_of(kind), ()):
            for work, error in ((theirs_of, ValueError), (partial(ours.inputs, read_picture(data, "a", MOST), "a"), RowError)):
                with pytest.raises(error, match=r"absolute aspect ratio must be smaller than 200|Size must contain"):
                    work()
        else:
            compare(ours, data, theirs_of())


@pytest.mark.parametrize("what", OURS)
def test_where_ours_differ_they_are_as_a_viewer_shows_them(pair: Pair, what: str) -> None:
    _, ours, processed = pair
    data, shown = OURS[what]
    found = np.asarray(read_picture(data, "a", MOST)).astype(int)
    assert np.abs(found - np.asarray(shown(data))).max() <= 1  # Pillow rounds alpha's products in whole numbers
    compare(ours, data, processed(Image.fromarray(found.astype(np.uint8))))
    assert np.abs(found - np.asarray(load_image(b64encode(data).decode()))).max() > 100
