"""The worker's end of parcels: asks the driver for one piece after another, checks each, and keeps the files.

One thread takes pieces in, another waits for parcels. Does not know what the files are.
"""

import logging
import shutil
import threading
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from ..cluster.messages import FromWorker
from ..parcels.file_messages import NoParcel, Piece, PieceWanted

log = logging.getLogger("mlx_bulk")

_MOST_ERRORS = 5  # wrong pieces of a parcel
_LOOK_SECONDS = 0.2


class NoSuchParcel(Exception):
    """A parcel cannot be had; says why."""


class ParcelShelf:
    """The parcels of a run, each a folder of its name in ``root``. tell: sends a message to the driver."""

    def __init__(self, run: str, root: Path, tell: Callable[[FromWorker], None]):
        self.run, self.root, self._tell = run, root, tell
        self._changed = threading.Condition()
        self._wanted: deque[str] = deque()  # the first one is under way
        self._offset = self._errors = 0
        self._missing: dict[str, str] = {}  # parcels that cannot be had, with the reason

    def want(self, name: str) -> None:
        """Asks for a parcel that is neither here nor under way. For any thread."""
        with self._changed:
            if name in self._wanted or name in self._missing or (self.root / name).is_dir():
                return
            self._wanted.append(name)
            if len(self._wanted) == 1:
                self._begin()

    def wait_for(self, name: str, stopped: Callable[[], bool]) -> Path | None:
        """Returns the folder of a parcel once it is here, None where ``stopped`` says so before. Raises NoSuchParcel."""
        self.want(name)
        with self._changed:
            while name in self._wanted:
                if stopped():
                    return None
                self._changed.wait(_LOOK_SECONDS)
            if (why := self._missing.pop(name, None)) is not None:
                raise NoSuchParcel(why)
        return self.root / name

    def drop(self, name: str) -> None:
        """Removes a parcel that nobody reads any more."""
        shutil.rmtree(self.root / name, ignore_errors=True)

    def take(self, message: Piece | NoParcel) -> None:
        """Takes an answer of the driver in, and asks for what follows. One that nobody waits for is passed over."""
        with self._changed:
            if not self._wanted or self._wanted[0] != message.parcel:
                return
            if isinstance(message, NoParcel):
                self._end("the driver does not have it any more")
            elif message.offset == self._offset:
                try:
                    self._add(message)
                except OSError as error:
                    self._want_no_more(message)
                    self._end(f"it cannot be written here ({error})")

    def _add(self, piece: Piece) -> None:
        """Adds a piece to its parcel's files. One that is not what was sent is asked for again."""
        size = sum(length for _, length in piece.files)
        right = sha256(piece.content).digest() == piece.checksum and self._offset + len(piece.content) <= size
        if not right or not (piece.content or not size):
            self._errors += 1
            if self._errors >= _MOST_ERRORS:
                self._want_no_more(piece)
                self._end(f"{self._errors} pieces of it came damaged")
                return
            log.warning("a piece of %s came damaged; it is asked for again", piece.parcel)
            self._tell(PieceWanted(self.run, piece.parcel, self._offset))
            return
        with self._row.open("ab") as row:
            row.write(piece.content)
        self._offset += len(piece.content)
        if size:
            self._tell(PieceWanted(self.run, piece.parcel, self._offset))  # with the whole size it says that all is here
        if self._offset == size:
            self._unpack(piece)
            self._end(None)

    def _want_no_more(self, piece: Piece) -> None:
        """Tells the driver that nothing more of a parcel is wanted: few workers are served at once."""
        self._tell(PieceWanted(self.run, piece.parcel, sum(length for _, length in piece.files)))

    def _unpack(self, piece: Piece) -> None:
        folder = self.root / f".{piece.parcel}"
        folder.mkdir()
        with self._row.open("rb") as row:
            for name, length in piece.files:
                with (folder / Path(name).name).open("wb") as file:
                    left = length
                    while left and (block := row.read(min(left, 1 << 20))):
                        file.write(block)
                        left -= len(block)
        folder.rename(self.root / piece.parcel)

    @property
    def _row(self) -> Path:
        return self.root / ".row"

    def _begin(self) -> None:
        self._offset = self._errors = 0
        shutil.rmtree(self.root / f".{self._wanted[0]}", ignore_errors=True)
        self.root.mkdir(parents=True, exist_ok=True)
        self._row.unlink(missing_ok=True)
        self._tell(PieceWanted(self.run, self._wanted[0], 0))

    def _end(self, missing: str | None) -> None:
        name = self._wanted.popleft()
        if missing is not None:
            self._missing[name] = missing
        self._row.unlink(missing_ok=True)
        if self._wanted:
            self._begin()
        self._changed.notify_all()
