"""Decodes a picture's bytes as RGB, as a viewer shows it: turned as its camera says, first frame, on white where it is transparent.

Needs Pillow. Refuses what is no picture, is cut off, or is larger than it may be, before its pixels take memory.
"""

import re
import warnings
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ...configs.errors import ConfigError
from ..core.errors import RowError, first_line
from .sources import picture_error

if TYPE_CHECKING:
    from PIL.Image import Image

# What viewers show. Others that Pillow knows are left out: some of them run programs (EPS), or are documents.
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "AVIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "ICO", "TGA")
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # gray of 16 bits, which Pillow would cut at 255
_ICON, _PNG = b"\0\0\1\0", b"\x89PNG\r\n\x1a\n"
_TILE = (322, 323)  # TIFF's tags of its tiles' width and height
_WHITE = (255, 255, 255)
_HEAD = 1000  # bytes that show what a file is which is no picture


def read_picture(data: bytes, name: str, most_pixels: int) -> "Image":
    """Returns a picture as RGB. name: what messages call it. most_pixels: width times height. Raises RowError."""
    images = pillow()
    if images.MAX_IMAGE_PIXELS is not None and most_pixels > images.MAX_IMAGE_PIXELS:
        images.MAX_IMAGE_PIXELS = most_pixels  # Pillow's own limit, beyond which it refuses to open a file
    try:
        if data.startswith(_ICON):
            _require_few_pixels(_icon_size(data), name, most_pixels)
        image = images.open(BytesIO(data), formats=_known_formats())
    except RowError:
        raise
    except images.DecompressionBombError as error:
        raise _too_large(name, "".join(re.findall(r"\d{6,}", str(error))[:1]), most_pixels) from None
    except images.UnidentifiedImageError:
        raise _no_picture(name, data[:_HEAD], len(data)) from None
    except Exception as error:  # decoders raise what they like on damaged headers
        raise _damaged(name, error) from None
    _require_few_pixels(image.size, name, most_pixels)
    _require_few_pixels(_tile_size(image), f"{name} (a tile)", most_pixels)
    try:
        image.load()
        return _rgb(_turned(image), name)
    except RowError:
        raise
    except Exception as error:  # a file that is cut off or damaged
        raise _damaged(name, error) from None


def _require_few_pixels(size: tuple[int, int], name: str, most_pixels: int) -> None:
    if size[0] * size[1] > most_pixels:
        raise _too_large(name, f"{size[0] * size[1]}", most_pixels)


def _icon_size(data: bytes) -> tuple[int, int]:
    """Returns the size of the picture that Pillow takes of an ICO, as that says it: the file may say another, and to open it decodes it."""
    from PIL.BmpImagePlugin import DibImageFile
    from PIL.IcoImagePlugin import IcoFile
    from PIL.PngImagePlugin import PngImageFile

    file = BytesIO(data)
    start = IcoFile(file).entry[0].offset
    file.seek(start)
    if data.startswith(_PNG, start):
        return PngImageFile(file).size
    width, height = DibImageFile(file).size
    return width, height // 2  # the lower half is the mask


def _tile_size(image: "Image") -> tuple[int, int]:
    """Returns the size of a TIFF's tiles, which may be larger than the picture and are decoded whole; 0 for other files."""
    width, height = (getattr(image, "tag_v2", {}).get(tag, 0) for tag in _TILE)
    return (width, height) if isinstance(width, int) and isinstance(height, int) else (0, 0)


def pixels_file(image: "Image", name: str, most_pixels: int) -> bytes:
    """Returns the pixels of an image in memory as a file, which ``read_picture`` reads. Arguments and errors as there."""
    _require_few_pixels(image.size, name, most_pixels)
    made = BytesIO()
    try:
        _rgb(_turned(image), name).save(made, "PPM")
    except RowError:
        raise
    except Exception as error:  # a file that was opened before, and is cut off or closed
        raise _damaged(name, error) from None
    return made.getvalue()


def require_picture(file: BinaryIO, size: int, name: str) -> None:
    """Raises RowError as ``read_picture`` does where a file does not begin as a picture does. Decodes no pixels.

    size: the file's bytes. What is wrong with the rest of it shows when it is decoded.
    """
    if file.read(len(_ICON)) == _ICON:
        return  # Pillow decodes an ICO when it opens it
    file.seek(0)
    images = pillow()
    try:
        images.open(file, formats=_known_formats())
    except images.DecompressionBombError:
        return  # the reader may allow more pixels
    except images.UnidentifiedImageError:
        file.seek(0)
        raise _no_picture(name, file.read(_HEAD), size) from None
    except Exception as error:
        raise _damaged(name, error) from None


@cache
def pillow() -> Any:
    """Returns Pillow's module of images. Raises ConfigError where it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError('pictures need Pillow, which is not installed; pip install "mlx-bulk[vision]"') from None
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd metadata, and of sizes that are checked here
    return Image


@cache
def _known_formats() -> tuple[str, ...]:
    """Returns those of ``FORMATS`` that this Pillow was built with."""
    images = pillow()
    images.init()
    return tuple(name for name in FORMATS if name in images.OPEN)


def _turned(image: "Image") -> "Image":
    """Returns the picture upright: a camera notes how it was held."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged notes say nothing, as in viewers
        return image


def _rgb(image: "Image", name: str) -> "Image":
    images = pillow()
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _WIDE:
        values = np.asarray(image)
        high = values.astype(np.int64) >> 8 if values.size and values.max() > 255 else values
        return images.fromarray(high.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise picture_error(f"{name}: the pixels are floating point numbers without a known range; save it with 8 or 16 bits a channel")
    if image.has_transparency_data:
        whole = image.convert("RGBA")
        on_white = images.new("RGB", whole.size, _WHITE)
        on_white.paste(whole, mask=whole.getchannel("A"))
        return on_white
    return image.convert("RGB")


def _too_large(name: str, size: str, most: int) -> RowError:
    found = f"the picture has {int(size):,} pixels" if size else "the picture has far more pixels"
    return picture_error(f"{name}: {found}; expected at most {most:,} in all; make it smaller (a run may raise data.max_image_pixels)")


def _damaged(name: str, error: Exception) -> RowError:
    return picture_error(f"{name}: the picture is damaged or cut off: {first_line(error)}; save it anew")


def _no_picture(name: str, head: bytes, size: int) -> RowError:
    return picture_error(f"{name}: {_found(head, size)}; expected a picture: {', '.join(_known_formats())}")


def _found(head: bytes, size: int) -> str:
    """Says what bytes are that are no picture, where that shows. head: the first of them; size: how many there are."""
    begin = head[:64].lstrip()
    if begin[:1] == b"<" or begin[:1] == b"{":
        return "found text" + (" (SVG is no picture of pixels: convert it to PNG)" if b"svg" in head.lower() else "")
    return "found a PDF" if begin.startswith(b"%PDF") else f"found {size:,} bytes that are no picture"
