"""Parcels: folders of files that go to workers a piece at a time, the next one when the one before has arrived.

So a connection never holds more than one piece for a worker, and the driver's memory only a few. Does not know what the files are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic

from .file_messages import NoParcel, Piece, PieceWanted
from .turns import Turns

PIECE_BYTES = 8 << 20
AT_ONCE = 4  # pieces that are on the way to workers

Send = Callable[[str, Piece | NoParcel], None]


@dataclass(slots=True, frozen=True)
class Parcel:
    """The files ``names`` of ``folder``, one behind the other as one row of bytes."""

    folder: Path
    names: tuple[str, ...]

    @classmethod
    def of_folder(cls, folder: Path, names: Sequence[str] = ("*",)) -> "Parcel | None":
        """Returns the parcel of the files in ``folder`` that match one of ``names``; None without any."""
        found = tuple(sorted({file.name for name in names for file in folder.glob(name) if file.is_file()}))
        return cls(folder, found) if found else None

    def piece(self, run: str, parcel: str, offset: int) -> Piece | None:
        """Returns the piece that begins at ``offset``; None behind the last byte.

        Raises OSError where a file cannot be read, or the files have become shorter than ``offset``.
        """
        files = tuple((name, (self.folder / name).stat().st_size) for name in self.names)
        content, begin = bytearray(), 0
        for name, size in files:
            within = offset + len(content) - begin
            if 0 <= within < size and len(content) < PIECE_BYTES:
                with (self.folder / name).open("rb") as file:
                    file.seek(within)
                    content += file.read(min(PIECE_BYTES - len(content), size - within))
            begin += size
        if offset > begin:
            raise FileNotFoundError(f"{self.folder} has {begin} bytes, and byte {offset} is wanted")
        if not content and (begin or offset):
            return None
        return Piece(run, parcel, files, offset, bytes(content), sha256(content).digest())


class PieceDesk:
    """Answers workers that want pieces of the parcels of ``run``. found: returns a parcel by its name, None where there is none."""

    def __init__(self, run: str, found: Callable[[str], Parcel | None], send: Send, clock: Callable[[], float] = monotonic):
        self._run, self._found, self._send = run, found, send
        self.turns = Turns(AT_ONCE, self._serve, clock)

    def _serve(self, worker: str, wanted: PieceWanted) -> bool:
        try:
            parcel = self._found(wanted.parcel)
            piece = None if parcel is None else parcel.piece(self._run, wanted.parcel, wanted.offset)
        except OSError:  # its files are gone
            parcel = piece = None
        if parcel is None:
            self._send(worker, NoParcel(self._run, wanted.parcel))
        elif piece is not None:
            self._send(worker, piece)
        return piece is not None and bool(piece.content)  # else nothing more is wanted of it
