"""Pictures that rows name by a path come from the driver: as they are there, once, with the errors of one machine."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread, Timer
from typing import Any

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import ModelError, RowError, RunEnded
from mlx_bulk.runner.images import sources
from mlx_bulk.runner.images.pictures import pillow, read_picture
from mlx_bulk.runner.images.sources import PictureSources
from mlx_bulk.runner.parcels import picture_desk
from mlx_bulk.runner.parcels.file_desk import FileDesk
from mlx_bulk.runner.parcels.file_messages import PicturePart, PictureTaken, PictureWanted
from mlx_bulk.runner.parcels.picture_desk import PictureDesk
from mlx_bulk.runner.worker.picture_cache import PictureCache
from mlx_bulk.runner.worker.sent_pictures import SentPictures

from ...vision_folders import drawn

BYTES = b"P6 29 29 255\n" + bytes(range(256)) * 10  # parts of it differ, and its head is that of a picture
OTHER = b"P6 29 29 255\n" + bytes(range(255, -1, -1)) * 10
Change = Callable[[PicturePart], PicturePart | None]


class Wire:
    """A worker and a driver's desk in two threads. sent: all parts; asked: all messages of the worker. change: what comes of a part."""

    def __init__(self, data: Path, cache: PictureCache | None = None, change: Change = lambda part: part):
        self.asked: list[Any] = []
        self.sent: list[PicturePart] = []
        self.change = change
        self.ended = False
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self.desk = PictureDesk("run", DataConfig(path=str(data)), lambda worker, part: self._take(part))
        self.worker = SentPictures("run", cache or PictureCache(), self._ask, lambda: self.ended)
        Thread(target=self._serve, daemon=True).start()

    def read(self, path: str, where: str = "image", beside: Path | None = None) -> bytes:
        return PictureSources((), False, self.worker.read).source(path, where, self.beside if beside is None else beside).read()

    beside = Path()

    @property
    def bytes_sent(self) -> int:
        return sum(len(part.content) for part in self.sent)

    def _ask(self, message: Any) -> None:
        self.asked.append(message)
        self._inbox.put(message)

    def _serve(self) -> None:
        while True:
            match self._inbox.get():
                case PictureWanted() as wanted:
                    self.desk.turns.answer("worker", wanted)
                case _:
                    self.desk.turns.forget("worker")

    def _take(self, part: PicturePart) -> None:
        self.sent.append(part)
        if (changed := self.change(part)) is not None:
            self.worker.take(changed)


@pytest.fixture(name="folder")
def a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(picture_desk, "PART_BYTES", 1000)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("{}")
    (folder / "a.png").write_bytes(BYTES)
    monkeypatch.setattr(Wire, "beside", folder)
    return folder


def test_a_file_arrives_in_parts_and_once(folder: Path) -> None:
    wire = Wire(folder / "rows.jsonl")
    assert [wire.read("a.png", where) for where in ("image", "image[1]", "image")] == [BYTES] * 3
    assert [len(part.content) for part in wire.sent] == [1000, 1000, 573, 0, 0]
    assert sum(isinstance(message, PictureTaken) for message in wire.asked) == 1


def test_a_file_that_has_changed_is_sent_again(folder: Path) -> None:
    wire = Wire(folder / "rows.jsonl")
    assert wire.read("a.png") == BYTES
    (folder / "a.png").write_bytes(OTHER[:700])
    assert wire.read("a.png") == OTHER[:700]


def test_a_change_within_one_tick_of_the_clock_is_seen(folder: Path) -> None:
    wire = Wire(folder / "rows.jsonl")
    assert wire.read("a.png") == BYTES
    before = (folder / "a.png").stat()
    (folder / "a.png").write_bytes(OTHER)
    os.utime(folder / "a.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert wire.read("a.png") == OTHER


SECRETS = {
    "key": b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA",
    "empty": b"",
    "json": b'{"token": "secret"}',
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "pdf": b"%PDF-1.7 secret",
    "begins as a picture": b"P5 secret text\n",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_no_picture_stays_with_the_driver_and_its_error_is_that_of_one_machine(folder: Path, name: str) -> None:
    (folder / "a.png").write_bytes(SECRETS[name])
    wire = Wire(folder / "rows.jsonl")
    source = PictureSources((folder.resolve(),), False).source("a.png", "image[1]", folder)
    with pytest.raises(RowError) as here:
        read_picture(source.read(), source.name, 1 << 20)
    for _ in range(2):
        with pytest.raises(RowError) as there:
            wire.read("a.png", "image[1]")
        assert (str(there.value), there.value.stage, there.value.name) == (str(here.value), here.value.stage, here.value.name)
    assert {(part.content, part.digest, part.size) for part in wire.sent} == {(b"", "", 0)}


@pytest.mark.parametrize("kind", ["BMP", "GIF", "ICO", "JPEG", "PNG", "PPM", "TGA", "TIFF", "WEBP"])
def test_pictures_of_all_kinds_travel_and_those_cut_off_have_the_error_of_one_machine(folder: Path, kind: str) -> None:
    drawn(40, 30, 1).save(folder / "a.png", kind)
    whole = (folder / "a.png").read_bytes()
    wire = Wire(folder / "rows.jsonl")
    assert wire.read("a.png") == whole
    for size in (len(whole) - 30, len(whole) // 2, 30, 20):
        (folder / "a.png").write_bytes(whole[:size])
        assert shown(lambda: wire.read("a.png")) == shown((folder / "a.png").read_bytes)


def shown(read: Callable[[], bytes]) -> str:
    """What a row shows of a picture: its size, or why it has none."""
    try:
        return str(read_picture(read(), "image: a.png", 1 << 20).size)
    except RowError as error:
        return str(error)


def test_a_picture_with_more_pixels_than_pillow_opens_travels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(40, 30, 1).save(folder / "a.png")
    monkeypatch.setattr(pillow(), "MAX_IMAGE_PIXELS", 100)
    assert Wire(folder / "rows.jsonl").read("a.png") == (folder / "a.png").read_bytes()


def test_rows_without_pictures_have_no_files(folder: Path) -> None:
    sent: list[Any] = []
    desk = FileDesk("run", None, lambda name: None, lambda worker, part: sent.append(part))
    desk.answer("worker", PictureWanted("run", 7, picture_desk.file_name("a.png", "image", folder)))
    desk.answer("worker", PictureTaken("run"))
    desk.forget("worker")
    desk.look()
    assert sent == [PicturePart("run", 7, problem="rows of this run have no pictures")]


def test_a_file_that_goes_between_two_parts_is_told(folder: Path) -> None:
    def change(part: PicturePart) -> PicturePart:
        (folder / "a.png").unlink(missing_ok=True)
        return part

    wire = Wire(folder / "rows.jsonl", change=change)
    Timer(10, lambda: setattr(wire, "ended", True)).start()
    with pytest.raises(RowError, match=r"a\.png is not there"):
        wire.read("a.png")


PATHS = [
    "a.png/b",
    "../secret.png",
    "sub",
    "gone.png",
    "/gone.png",
    "a\0b",
    "x" * 5000,
    "half \ud800 a pair.png",
    "link",
    "big.png",
]


@pytest.mark.parametrize("path", PATHS)
def test_errors_are_those_of_one_machine(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_BYTES", 1 << 20)
    (folder.parent / "secret.png").write_bytes(b"secret")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder.parent / "secret.png")
    (folder / "big.png").write_bytes(bytes((1 << 20) + 1))
    wire = Wire(folder / "rows.jsonl")
    with pytest.raises(RowError) as here:
        PictureSources((folder.resolve(),), False).source(path, "image", folder).read()
    with pytest.raises(RowError) as there:
        wire.read(path)
    assert (str(there.value), there.value.stage, there.value.name) == (str(here.value), here.value.stage, here.value.name)
    assert wire.bytes_sent == 0


def test_paths_of_rows_without_a_file_begin_where_the_driver_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    wire = Wire(Path("-"))
    assert wire.read("a.png", beside=Path()) == BYTES
    with pytest.raises(RowError, match=r"gone.png is not there; paths begin at .*/data, the working directory"):
        wire.read("gone.png", beside=Path())


def test_a_folder_that_is_gone_ends_the_run(folder: Path) -> None:
    desk = PictureDesk("run", DataConfig(path=str(folder / "rows.jsonl")), lambda worker, part: None)
    wanted = PictureWanted("run", 1, picture_desk.file_name("a.png", "image", folder))
    folder.rename(folder.with_name("away"))
    with pytest.raises(ModelError, match="is not there any more"):
        desk.turns.answer("worker", wanted)


def test_a_file_that_changes_between_two_parts_is_read_anew(folder: Path) -> None:
    def change(part: PicturePart) -> PicturePart:
        if part.offset == 1000 and part.content[:1] == BYTES[1000:1001]:
            (folder / "a.png").write_bytes(OTHER)
        return part

    wire = Wire(folder / "rows.jsonl", change=change)
    assert wire.read("a.png") == OTHER


@pytest.mark.parametrize("spoilt", [{"content": b"x" * 1000}, {"content": b""}, {"digest": "0" * 64}])
def test_damaged_parts_come_again_and_a_file_that_never_comes_right_is_given_up(folder: Path, spoilt: dict[str, Any]) -> None:
    wrong = iter([None, spoilt])
    wire = Wire(folder / "rows.jsonl", change=lambda part: replace(part, **(next(wrong, None) or {})))
    assert wire.read("a.png") == BYTES
    wire = Wire(folder / "rows.jsonl", change=lambda part: replace(part, **spoilt))
    with pytest.raises(RowError, match=r"^image: a\.png changed while the run read it; put it back") as caught:
        wire.read("a.png")
    assert caught.value.stage == "image"


def test_an_answer_to_an_engine_that_has_died_is_passed_over(folder: Path) -> None:
    (folder / "b.png").write_bytes(OTHER)
    wire = Wire(folder / "rows.jsonl")
    earlier = Wire(folder / "rows.jsonl")
    earlier.read("b.png")
    for part in earlier.sent:
        wire.worker.take(part)
    assert wire.read("a.png") == BYTES


def test_waiting_ends_with_the_run(folder: Path) -> None:
    wire = Wire(folder / "rows.jsonl", change=lambda part: None)
    wire.ended = True
    with pytest.raises(RunEnded):
        wire.read("a.png")


def test_what_is_no_name_of_a_file_is_refused(folder: Path) -> None:
    sent: list[PicturePart] = []
    desk = PictureDesk("run", DataConfig(path=str(folder / "rows.jsonl")), lambda worker, part: sent.append(part))
    for named in ("", "[]", "7", '["a", "b"]', "null", "[" * 200_000, '["a.png", "image", "' + str(folder) + '"]'):
        desk.turns.answer("worker", PictureWanted("run", 1, named, offset=-5))
    assert [bool(part.problem) for part in sent] == [True] * 6 + [False]
    assert not any(part.content for part in sent)


def test_few_parts_are_on_the_way_at_once(folder: Path) -> None:
    served: list[str] = []
    desk = PictureDesk("run", DataConfig(path=str(folder / "rows.jsonl")), lambda worker, part: served.append(worker))
    wanted = PictureWanted("run", 1, picture_desk.file_name("a.png", "image", folder))
    for number in range(picture_desk.AT_ONCE + 2):
        desk.turns.answer(f"w{number}", wanted)
    assert len(served) == picture_desk.AT_ONCE
    desk.turns.forget("w3")
    assert served[picture_desk.AT_ONCE :] == [f"w{picture_desk.AT_ONCE}"]
    desk.turns.answer("late", replace(wanted, named=picture_desk.file_name("gone.png", "image", folder)))
    desk.turns.forget("w4")
    assert served[picture_desk.AT_ONCE + 1 :] == [f"w{picture_desk.AT_ONCE + 1}"]
    desk.turns.forget("w5")
    desk.turns.forget("w6")
    assert served[picture_desk.AT_ONCE + 2 :] == ["late"]  # which has nothing on the way


def test_the_sha256_of_files_that_stay_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_desk, "_REMEMBERED", 2)
    hashed: list[int] = []
    real = picture_desk.file_digest
    monkeypatch.setattr(picture_desk, "file_digest", lambda file, name: hashed.append(1) or real(file, name))
    monkeypatch.setattr(picture_desk, "is_settled", lambda stamp, now: True)
    wire = Wire(folder / "rows.jsonl")
    for name in ("a", "a", "b", "c", "a"):
        (folder / f"{name}.png").write_bytes(BYTES) if not (folder / f"{name}.png").exists() else None
        assert wire.read(f"{name}.png") == BYTES
    assert len(hashed) == 4  # the last time anew: two others came between
