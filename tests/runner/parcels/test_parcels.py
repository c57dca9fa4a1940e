"""Parcels arrive whole: a piece at a time, few on the way at once, and a damaged one again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mlx_bulk.runner.parcels import parcels, turns
from mlx_bulk.runner.parcels.file_messages import NoParcel, Piece, PieceWanted
from mlx_bulk.runner.parcels.parcels import Parcel, PieceDesk
from mlx_bulk.runner.worker.parcel_shelf import NoSuchParcel, ParcelShelf

FILES = {"a.json": b"{}", "b.bin": bytes(range(250)), "empty": b"", "z.txt": b"the end"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(parcels, "PIECE_BYTES", 100)
    (tmp_path / "sent").mkdir()
    for name, content in FILES.items():
        (tmp_path / "sent" / name).write_bytes(content)
    return tmp_path / "sent"


def arrive(
    folder: Path, root: Path, names: list[str], change: Callable[[Piece | NoParcel], Piece | NoParcel] = lambda piece: piece
) -> tuple[ParcelShelf, list[int]]:
    """Has parcels asked for, all of which are the files in ``folder``. Returns the shelf, and the bytes of each piece."""
    asked: list[PieceWanted] = []
    shelf = ParcelShelf("run", root, lambda message: asked.append(message) if isinstance(message, PieceWanted) else None)
    sizes: list[int] = []

    def send(worker: str, piece: Piece | NoParcel) -> None:
        sizes.append(len(piece.content) if isinstance(piece, Piece) else -1)
        shelf.take(change(piece))

    desk = PieceDesk("run", lambda name: Parcel.of_folder(folder) if name in names else None, send)
    for name in names:
        shelf.want(name)
    while asked:
        desk.turns.answer("worker", asked.pop(0))
    return shelf, sizes


def test_files_arrive_as_they_were_sent(folder: Path, tmp_path: Path):
    shelf, sizes = arrive(folder, tmp_path / "shelf", ["one", "two"])
    assert sizes == [100, 100, 59] * 2
    for name in ("one", "two"):
        here = shelf.wait_for(name, lambda: False)
        assert here is not None
        assert {path.name: path.read_bytes() for path in here.iterdir()} == FILES
    assert {path.name for path in (tmp_path / "shelf").iterdir()} == {"one", "two"}


def test_a_damaged_piece_comes_again_and_one_of_another_place_is_passed_over(folder: Path, tmp_path: Path):
    wrong = iter([None, {"content": b"x" * 100}, {"offset": 0}, {"content": b""}])

    def change(piece: Piece | NoParcel) -> Piece | NoParcel:
        return replace(piece, **(next(wrong, None) or {}))

    shelf, sizes = arrive(folder, tmp_path / "shelf", ["one"], change)
    shelf.want("one")
    assert sizes == [100, 100, 100]  # the third was passed over, and nobody asks again before the connection is made anew
    whole = Parcel.of_folder(folder)
    assert whole is not None
    for offset in (100, 200):
        piece = whole.piece("run", "one", offset)
        assert piece is not None
        shelf.take(piece)
    assert (tmp_path / "shelf" / "one" / "b.bin").read_bytes() == FILES["b.bin"]


def test_pieces_that_never_come_right_are_given_up(folder: Path, tmp_path: Path):
    shelf, sizes = arrive(folder, tmp_path / "shelf", ["one"], lambda piece: replace(piece, checksum=b""))  # type: ignore[call-arg]
    assert len(sizes) == 5
    with pytest.raises(NoSuchParcel, match="5 pieces of it came damaged"):
        shelf.wait_for("one", lambda: False)


def test_a_parcel_that_the_driver_has_not_is_told(folder: Path, tmp_path: Path):
    asked: list[PieceWanted] = []
    shelf = ParcelShelf("run", tmp_path / "shelf", lambda message: asked.append(message) if isinstance(message, PieceWanted) else None)
    shelf.want("gone")
    PieceDesk("run", lambda name: None, lambda worker, message: shelf.take(message)).turns.answer("worker", asked[0])
    with pytest.raises(NoSuchParcel, match="does not have it"):
        shelf.wait_for("gone", lambda: False)


def test_waiting_ends_with_the_run(tmp_path: Path):
    assert ParcelShelf("run", tmp_path / "shelf", lambda message: None).wait_for("one", lambda: True) is None


def test_few_pieces_are_on_the_way_at_once(folder: Path):
    sent: list[tuple[str, int]] = []

    def send(worker: str, piece: Piece | NoParcel) -> None:
        assert isinstance(piece, Piece)
        sent.append((worker, piece.offset))

    desk = PieceDesk("run", lambda name: Parcel.of_folder(folder), send)
    for number in range(6):
        desk.turns.answer(f"w{number}", PieceWanted("run", "one", 0))
    assert sent == [(f"w{number}", 0) for number in range(parcels.AT_ONCE)]
    desk.turns.answer("w1", PieceWanted("run", "one", 100))  # those that wait come first
    assert sent[parcels.AT_ONCE :] == [("w4", 0)]
    desk.turns.forget("w0")
    desk.turns.answer("w2", PieceWanted("run", "one", 259))  # it has all
    assert sent[parcels.AT_ONCE :] == [("w4", 0), ("w5", 0), ("w1", 100)]


def test_a_parcel_that_is_given_up_leaves_its_place_to_others(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parcels, "AT_ONCE", 1)
    asked: list[PieceWanted] = []
    shelf = ParcelShelf("run", tmp_path / "shelf", lambda message: asked.append(message) if isinstance(message, PieceWanted) else None)
    served: list[str] = []

    def send(worker: str, piece: Piece | NoParcel) -> None:
        served.append(worker)
        if worker == "full":
            assert isinstance(piece, Piece)
            (tmp_path / "shelf").rmdir()  # it cannot be written
            shelf.take(piece)

    desk = PieceDesk("run", lambda name: Parcel.of_folder(folder), send)
    shelf.want("one")
    while asked:
        desk.turns.answer("full", asked.pop(0))
    desk.turns.answer("other", PieceWanted("run", "one", 0))
    assert served == ["full", "other"]


def test_files_that_have_become_shorter_on_the_way_are_told(folder: Path):
    sent: list[Piece | NoParcel] = []
    desk = PieceDesk("run", lambda name: Parcel.of_folder(folder), lambda worker, message: sent.append(message))
    desk.turns.answer("worker", PieceWanted("run", "one", 0))
    (folder / "b.bin").write_bytes(b"")
    desk.turns.answer("worker", PieceWanted("run", "one", 100))
    assert isinstance(sent[1], NoParcel)


def test_a_worker_that_falls_silent_leaves_its_place_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parcels, "AT_ONCE", 1)
    served, now = list[str](), [0.0]
    desk = PieceDesk("run", lambda name: Parcel.of_folder(folder), lambda worker, _: served.append(worker), lambda: now[0])
    for worker in ("stopped", "other"):
        desk.turns.answer(worker, PieceWanted("run", "one", 0))
    desk.turns.look()
    assert served == ["stopped"]
    now[0] = turns.PLACE_SECONDS
    desk.turns.look()
    assert served == ["stopped", "other"]


def test_a_parcel_of_empty_files_arrives_and_keeps_no_place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parcels, "AT_ONCE", 1)
    for name in FILES:
        (folder / name).write_bytes(b"")
    shelf, sizes = arrive(folder, tmp_path / "shelf", ["one", "two"])
    assert sizes == [0, 0]
    for name in ("one", "two"):
        arrived = shelf.wait_for(name, lambda: False)
        assert arrived is not None
        assert {file.name: file.read_bytes() for file in arrived.iterdir()} == dict.fromkeys(FILES, b"")
    served: list[str] = []
    desk = PieceDesk("run", lambda name: Parcel.of_folder(folder), lambda worker, _: served.append(worker))
    for worker in ("first", "second"):
        desk.turns.answer(worker, PieceWanted("run", "one", 0))
    assert served == ["first", "second"]
