"""All files of a run that its driver sends to workers: parcels, and the pictures that rows name."""

from collections.abc import Callable

from ...configs.data import DataConfig
from .file_messages import NoParcel, PicturePart, PictureTaken, PictureWanted, Piece, PieceWanted
from .parcels import Parcel, PieceDesk
from .picture_desk import PictureDesk

FileWanted = PieceWanted | PictureWanted | PictureTaken


class FileDesk:
    """Answers workers of the run ``run``. data: of its config. found: see ``PieceDesk``. send: sends a worker a message. For one thread."""

    def __init__(
        self, run: str, data: DataConfig, found: Callable[[str], Parcel | None], send: Callable[[str, Piece | NoParcel | PicturePart], None]
    ):
        self._pieces, self._pictures = PieceDesk(run, found, send).turns, PictureDesk(run, data, send).turns

    def answer(self, worker: str, wanted: FileWanted) -> None:
        """Sends a worker what it wants, now or when its turn comes. Raises ModelError where the input's folder is gone."""
        match wanted:
            case PieceWanted():
                self._pieces.answer(worker, wanted)
            case PictureWanted():
                self._pictures.answer(worker, wanted)
            case PictureTaken():
                self._pictures.forget(worker)

    def forget(self, worker: str) -> None:
        """Forgets what a worker wants, which has left."""
        self._pieces.forget(worker)
        self._pictures.forget(worker)

    def look(self) -> None:
        """Serves those that wait for workers which have fallen silent."""
        self._pieces.look()
        self._pictures.look()
