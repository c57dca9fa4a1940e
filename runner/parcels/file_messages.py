"""The messages by which workers ask a run's driver for files, and by which these arrive. ``run`` is the run's digest."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Piece:
    """A part of a parcel: files for a worker, one behind the other as one row of bytes.

    files: their names and sizes. offset: of ``content`` in the row. checksum: sha256 of ``content``.
    """

    run: str
    parcel: str
    files: tuple[tuple[str, int], ...]
    offset: int
    content: bytes
    checksum: bytes


@dataclass(slots=True, frozen=True)
class NoParcel:
    """Answers a worker that wants a parcel which the driver does not have, or has no more."""

    run: str
    parcel: str


@dataclass(slots=True, frozen=True)
class PieceWanted:
    """Asks for the part of a parcel that begins at ``offset``. With the parcel's size it says that nothing more is wanted."""

    run: str
    parcel: str
    offset: int


@dataclass(slots=True, frozen=True)
class PictureWanted:
    """Asks for the part of a picture's file that begins at ``offset``. A worker asks for one at a time.

    ask: a number of the worker's own, which the answer repeats. named: what the row says, see ``named_file``. have: the sha256 under
    which the worker has this file already, empty where it has not.
    """

    run: str
    ask: int
    named: str
    have: str = ""
    offset: int = 0


@dataclass(slots=True, frozen=True)
class PicturePart:
    """Answers ``PictureWanted``. problem: why the picture cannot be read, as the row's error says it; all else is empty then.

    digest, size: the hex sha256 of the whole file, and its bytes. content: nothing where the worker has the file.
    """

    run: str
    ask: int
    offset: int = 0
    digest: str = ""
    size: int = 0
    content: bytes = b""
    problem: str = ""


@dataclass(slots=True, frozen=True)
class PictureTaken:
    """The worker has all that it wants of the picture that it asked for last."""

    run: str
