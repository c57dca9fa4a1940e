"""All files of a run that its driver sends to workers: parcels, and the pictures that rows name."""

from collections.abc import Callable

from ...configs.data import DataConfig
from .file_messages import NoParcel, PicturePart, PictureTaken, PictureWanted, Piece, PieceWanted
from .parcels import Parcel, PieceDesk
from .picture_desk import PictureDesk

FileWanted = PieceWanted | PictureWanted | PictureTaken


class FileDesk:
    """Answers workers of the run ``run``. For one thread.

    pictures: of the config, where rows may have pictures; None where they have none, and no file of the input's folder is sent. found:
    see ``PieceDesk``. send: sends a worker a message.
    """

    def __init__(
        self,
        run: str,
        pictures: DataConfig | None,
        found: Callable[[str], Parcel | None],
        send: Callable[[str, Piece | NoParcel | PicturePart], None],
    ):
        self._run, self._send = run, send
        self._pieces = PieceDesk(run, found, send).turns
        self._pictures = None if pictures is None else PictureDesk(run, pictures, send).turns
        self._turns = (self._pieces,) if self._pictures is None else (self._pieces, self._pictures)

    def answer(self, worker: str, wanted: FileWanted) -> None:
        """Sends a worker what it wants, now or when its turn comes. Raises ModelError where the input's folder is gone."""
        match wanted:
            case PieceWanted():
                self._pieces.answer(worker, wanted)
            case PictureWanted():
                if self._pictures is not None:
                    self._pictures.answer(worker, wanted)
                else:  # no worker of ours asks
                    self._send(worker, PicturePart(self._run, wanted.ask, wanted.offset, problem="rows of this run have no pictures"))
            case PictureTaken():
                if self._pictures is not None:
                    self._pictures.forget(worker)

    def forget(self, worker: str) -> None:
        """Forgets what a worker wants, which has left."""
        for turns in self._turns:
            turns.forget(worker)

    def look(self) -> None:
        """Serves those that wait for workers which have fallen silent."""
        for turns in self._turns:
            turns.look()
