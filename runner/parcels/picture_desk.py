"""The driver's end of pictures that rows name by a path: workers ask for a file, and get it a part at a time.

The driver knows which files those may be: pictures below the input's folder, and no others, whatever a worker asks for. What a row's
error says is said here, so that it is the same as on one machine.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from time import monotonic, time_ns

from ...configs.data import DataConfig
from ..core.errors import RowError
from ..files.file_stamp import Stamp, is_settled, stamp_of
from ..images.pictures import require_picture
from ..images.row_pictures import picture_folders
from ..images.sources import PictureSources, picture_error
from .file_messages import PicturePart, PictureWanted
from .turns import Turns

PART_BYTES = 1 << 20
AT_ONCE = 8  # parts that are on the way to workers
_REMEMBERED = 1 << 14  # files whose sha256 is remembered

_Mark = tuple[int, Stamp]  # of a file: its size and its stamp


def file_name(path: str, where: str, beside: Path) -> str:
    """Returns the name by which a worker asks for a file. Arguments: see ``PictureSources.file``.

    It is plain ASCII: half a surrogate pair, which a row may hold, cannot travel as it is.
    """
    return json.dumps([path, where, str(beside)])


class PictureDesk:
    """Answers workers that want pictures of the run ``run``, whose rows are ``data``'s. For one thread."""

    def __init__(self, run: str, data: DataConfig, send: Callable[[str, PicturePart], None], clock: Callable[[], float] = monotonic):
        self._run, self._send = run, send
        self._sources = PictureSources(picture_folders(data), fetch=False)
        self._digests: OrderedDict[Path, tuple[_Mark, str]] = OrderedDict()
        self.turns = Turns(AT_ONCE, self._serve, clock)

    def _serve(self, worker: str, wanted: PictureWanted) -> bool:
        """Sends a part. Raises ModelError where the input's folder is gone, as a run on one machine does."""
        try:
            part = self._part(wanted)
        except RowError as error:
            part = PicturePart(self._run, wanted.ask, wanted.offset, problem=str(error))
        self._send(worker, part)
        return bool(part.content)

    def _part(self, wanted: PictureWanted) -> PicturePart:
        file = self._sources.file(*_named(wanted.named))
        with file.opened() as opened:
            digest, size = self._digest(file.place, file.shown, opened)
            content = b""
            if digest != wanted.have and 0 <= wanted.offset < size:
                opened.seek(wanted.offset)
                content = opened.read(PART_BYTES)
        return PicturePart(self._run, wanted.ask, wanted.offset, digest, size, content)

    def _digest(self, place: Path, shown: str, file: BufferedReader) -> tuple[str, int]:
        """Returns the sha256 of a picture's file and its bytes. It is read again only where its stamp may hide a change.

        Raises RowError for what is no picture, before anything is told of it.
        """
        mark = _mark(place)
        known = self._digests.pop(place, None)
        if known is None or known[0] != mark:
            require_picture(file, mark[0], shown)
            file.seek(0)
            known = mark, file_digest(file, "sha256").hexdigest()
        if is_settled(mark[1], time_ns()) and _mark(place) == mark:
            self._digests[place] = known
            if len(self._digests) > _REMEMBERED:
                self._digests.popitem(last=False)
        return known[1], mark[0]


def _mark(place: Path) -> _Mark:
    status = place.stat()
    return status.st_size, stamp_of(status)


def _named(name: str) -> tuple[str, str, Path]:
    """Returns what a worker has named by ``file_name``. Raises RowError for anything else."""
    try:
        path, where, beside = (str(each) for each in json.loads(name))
    except (ValueError, TypeError, RecursionError):
        raise picture_error("a worker asked for it by what is no name of a file; install the same version of mlx-bulk") from None
    return path, where, Path(beside)
