"""Pictures as their files say them: what is done right, and what is refused before it takes memory."""

import struct
import zlib

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.images.pictures import read_picture
from PIL import IcoImagePlugin, Image

from ...vision_folders import drawn, picture_bytes

MOST = 1_000_000


def pixels(data: bytes) -> np.ndarray:  # pyright: ignore[reportMissingTypeArgument]
    image = read_picture(data, "a.png", MOST)
    assert image.mode == "RGB"
    return np.asarray(image)


def refusal(data: bytes, most: int = MOST) -> str:
    with pytest.raises(RowError) as caught:
        read_picture(data, "a.png", most)
    assert caught.value.stage == "image"
    return str(caught.value)


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it has so many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "TGA"])
def test_formats_without_loss_give_the_same_pixels(form: str) -> None:
    np.testing.assert_array_equal(pixels(picture_bytes(form=form)), np.asarray(drawn()))


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (3, 200)])
def test_tiny_pictures(size: tuple[int, int]) -> None:
    assert pixels(picture_bytes(drawn(*size))).shape == (size[1], size[0], 3)


def test_the_camera_says_which_way_is_up() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was turned by a quarter
    np.testing.assert_array_equal(pixels(picture_bytes(exif=turned)), np.rot90(np.asarray(drawn()), -1))
    damaged = picture_bytes(exif=b"Exif\0\0not what it should be")
    np.testing.assert_array_equal(pixels(damaged), np.asarray(drawn()))


def test_the_first_frame_of_an_animation() -> None:
    frames = [drawn(shade=shade).convert("P", palette=Image.Palette.ADAPTIVE) for shade in range(3)]
    animated = picture_bytes(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(pixels(animated), np.asarray(frames[0].convert("RGB")))


def test_gray_of_16_bits_keeps_its_high_byte() -> None:
    values = np.arange(60 * 40, dtype=np.uint16).reshape(40, 60) * 27
    found = pixels(picture_bytes(Image.fromarray(values)))
    np.testing.assert_array_equal(found, np.repeat((values >> 8)[..., None], 3, -1))


def test_cmyk_becomes_rgb() -> None:
    found = pixels(picture_bytes(drawn().convert("CMYK"), "JPEG", quality=100, subsampling=0))
    assert np.abs(found.astype(int) - np.asarray(drawn())).max() < 40  # JPEG's own loss at edges


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pictures_stand_on_white(mode: str) -> None:
    image = Image.new("RGBA", (8, 4), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 4))
    found = pixels(picture_bytes(image.convert(mode)))
    assert found[:, :4].max() == 0
    assert found[:, 4:].min() == 255


def test_a_jpeg_that_is_cut_off_is_refused() -> None:
    whole = picture_bytes(drawn(400, 300), "JPEG")
    assert "a.png: the picture is damaged or cut off: " in refusal(whole[: len(whole) // 2])
    assert "a.png: the picture is damaged or cut off: " in refusal(picture_bytes()[:-30])


@pytest.mark.parametrize("side", [1_001, 10_000, 14_143, 60_000])
def test_a_bomb_is_refused_by_its_size(side: int) -> None:
    said = refusal(bomb(side, side))
    assert f"a.png: the picture has {side * side:,} pixels; expected at most 1,000,000 in all" in said
    assert "(a run may raise data.max_image_pixels)" in said


def icon(frame: bytes) -> bytes:
    """An ICO that says its one picture has 16 × 16 pixels."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(frame), 22) + frame


def tiled(width: int, height: int) -> bytes:
    """A TIFF of 16 × 16 pixels in one tile of this size."""
    tile = zlib.compress(bytes(width * height * 3))
    values = {256: 16, 257: 16, 258: 146, 259: 8, 262: 2, 277: 3, 284: 1, 322: width, 323: height, 324: 152, 325: len(tile)}
    tags = b"".join(struct.pack("<HHII", tag, *((3, 3, at) if tag == 258 else (4, 1, at))) for tag, at in values.items())
    return b"II*\0" + struct.pack("<IH", 8, len(values)) + tags + bytes(4) + struct.pack("<3H", 8, 8, 8) + tile


@pytest.mark.parametrize("frame", [bomb(60_000, 60_000), struct.pack("<IiiHHIIiiII", 40, 60_000, 120_000, 1, 32, 0, 0, 0, 0, 0, 0)])
def test_an_icon_that_says_it_is_small_is_refused_before_it_is_decoded(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IcoImagePlugin.IcoFile, "frame", None)
    assert "a.png: the picture has 3,600,000,000 pixels; expected at most 1,000,000 in all" in refusal(icon(frame))


@pytest.mark.parametrize("form", ["png", "bmp"])
def test_icons_are_read(form: str) -> None:
    icons = picture_bytes(drawn(64, 64), "ICO", sizes=[(64, 64), (16, 16)], bitmap_format=form)
    np.testing.assert_array_equal(pixels(icons), np.asarray(drawn(64, 64)))
    assert pixels(icon(picture_bytes())).shape == (40, 60, 3)
    assert "damaged" in refusal(icons[:40])
    assert "damaged" in refusal(icons[:6])


def test_a_tile_that_is_larger_than_its_picture_counts() -> None:
    assert pixels(tiled(32, 32)).shape == (16, 16, 3)
    assert "a.png (a tile): the picture has 1,048,576 pixels" in refusal(tiled(1024, 1024))


def test_the_limit_may_be_above_that_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read_picture(picture_bytes(), "a.png", MOST).size == (60, 40)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found 0 bytes that are no picture; expected a picture: JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "found text (SVG is no picture of pixels: convert it to PNG)"),
        (b"%PDF-1.7", "found a PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "bytes that are no picture"),
        (picture_bytes(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "floating point numbers without a known range"),
    ],
)
def test_what_is_no_picture(data: bytes, message: str) -> None:
    assert message in refusal(data)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "TIFF", "WEBP"])
def test_damaged_bytes_are_a_picture_or_an_error_of_the_row(form: str) -> None:
    whole, stages = picture_bytes(form=form), set[str]()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        data = bytearray(whole)
        data[at] ^= 0x5A
        try:
            assert read_picture(bytes(data), "a.png", MOST).mode == "RGB"
        except RowError as error:
            stages.add(error.stage)
    assert stages <= {"image"}
