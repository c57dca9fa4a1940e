"""Makes small copies of the pictures of the sampled rows, as data URLs: the page shows them without any file beside it.

Each distinct picture is there once. What cannot be shown is a line that says so, and fails nothing.
"""

import logging
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configs.errors import BulkError
from ...runner.core.errors import RowError
from ...runner.images.pictures import read_picture
from ...runner.runs.run_pictures import RunPicture, had_pictures, pictures_of_rows
from ..terminal.tables import shorten

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("mlx_bulk")

SIDE = 160  # pixels of the longer side
_OF_ROW = 4  # pictures that are shown of one row
_PICTURES = 64  # distinct ones on a page: each is decoded in full, which takes a tenth of a second for a camera's photo
_BYTES = 500_000  # of all data URLs: the page stays under 3 MB
_REASON = 200

Json = dict[str, Any]


@dataclass(slots=True)
class Thumbnails:
    """Small copies of pictures. urls: each distinct one. rows: what the page shows of each row. note: why nothing can be shown."""

    urls: list[str] = field(default_factory=list[str])
    rows: dict[int, list[Json]] = field(default_factory=dict[int, list[Json]])
    note: str = ""


def thumbnails(run: Path, stored: Json, rows: Iterable[int]) -> Thumbnails:
    """Returns small copies of the pictures of a run's ``rows``. stored: its run.json. Never raises for what is there no more."""
    found = Thumbnails()
    if not had_pictures(stored):
        return found
    maker = _Maker(found, int(stored["config"]["data"]["max_image_pixels"]))
    try:
        with pictures_of_rows(run, stored, rows) as pictures:
            for row, named in pictures:
                found.rows[row] = [maker.shown(row, at, len(named), picture) for at, picture in enumerate(named[:_OF_ROW])]
                if len(named) > _OF_ROW:
                    found.rows[row].append({"why": f"and {len(named) - _OF_ROW:,} more"})
    except (BulkError, OSError, ValueError) as error:
        log.warning("report: pictures are not shown: %s", error)
        found.note = f" Pictures are not shown: {error}."
    return found


@dataclass(slots=True)
class _Maker:
    """Puts small copies into ``found``. known: the place of each by the sha256 of its picture, with width and height."""

    found: Thumbnails
    most_pixels: int
    known: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    room: int = _BYTES

    def shown(self, row: int, at: int, count: int, picture: RunPicture) -> Json:
        """Returns what the page shows of a row's picture."""
        try:
            data = picture.read()
            digest = sha256(data).hexdigest()
            if digest not in self.known:
                if len(self.known) == _PICTURES or self.room <= 0:
                    return {"why": "the page shows no more pictures: it would grow too large"}
                self.known[digest] = self._added(read_picture(data, "picture", self.most_pixels))
        except (RowError, BulkError, OSError) as error:
            return {"why": f"picture not shown: {shorten(str(error).removeprefix('picture: '), _REASON)}"}
        url, width, height = self.known[digest]
        which = f"picture {at + 1} of {count}" if count > 1 else "the picture"
        return {"picture": url, "width": width, "height": height, "alt": f"{which} of row {row:,}"}

    def _added(self, image: "Image") -> tuple[int, int, int]:
        image.thumbnail((SIDE, SIDE))
        stream = BytesIO()
        image.save(stream, "JPEG", quality=75, optimize=True)
        url = f"data:image/jpeg;base64,{b64encode(stream.getvalue()).decode()}"
        self.room -= len(url)
        self.found.urls.append(url)
        return len(self.found.urls) - 1, *image.size
