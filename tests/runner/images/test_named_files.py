"""A picture's file that changes between two starts of a run is seen, also where the input has grown."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.runner.data.scan import scan
from mlx_bulk.runner.images import named_files
from mlx_bulk.runner.images.named_files import changed_blocks, files_fingerprint
from mlx_bulk.runner.runs.drift import inputs_drift

from ...vision_folders import data_url

OLD = 1_600_000_000


class Folder:
    """Rows that name pictures of a folder, and the fingerprint of their files."""

    def __init__(self, root: Path):
        self.root = root
        (root / "pictures").mkdir()
        for number in range(12):
            self.write(number, b"%d" % number)

    def write(self, number: int, data: bytes) -> None:
        path = self.root / "pictures" / f"{number}.png"
        path.write_bytes(data)
        os.utime(path, (OLD, OLD))

    def rows(self, *rows: Any) -> None:
        (self.root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def config(self, **prompt: Any) -> GenerateConfig:
        prompt = prompt or {"user": "x", "images": "image"}
        values = {"job": "generate", "model": "demo", "data": str(self.root / "rows.jsonl"), "prompt": prompt, "output": "out"}
        config = load_config(values)
        assert isinstance(config, GenerateConfig)
        return config

    def fingerprint(self, stored: dict[str, Any] | None = None, **prompt: Any) -> dict[str, Any]:
        config = self.config(**prompt)
        found = files_fingerprint(scan(config.data, self.root / "none", afresh=True), config, stored)
        assert found is not None
        return json.loads(json.dumps(found))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(named_files, "BLOCK", 4)
    monkeypatch.setattr(named_files, "is_settled", lambda stamp, now: True)
    return Folder(tmp_path)


def test_the_blocks_of_changed_and_missing_files_are_named(folder: Folder) -> None:
    folder.rows(*({"image": f"pictures/{number}.png"} for number in range(10)))
    before = folder.fingerprint()
    assert (before["rows"], len(before["contents"])) == (10, 3)
    assert changed_blocks(before, folder.fingerprint(before)) == []
    folder.write(5, b"x")
    (folder.root / "pictures" / "9.png").unlink()
    assert changed_blocks(before, folder.fingerprint(before)) == [range(4, 8), range(8, 10)]


@pytest.mark.parametrize("rows", [10, 11, 12, 14])
def test_an_input_that_grew_is_compared_as_far_as_it_went(folder: Folder, rows: int) -> None:
    names = [{"image": f"pictures/{number % 12}.png"} for number in range(14)]
    folder.rows(*names[:10])
    before = folder.fingerprint()
    folder.rows(*names[:rows])
    assert changed_blocks(before, folder.fingerprint(before)) == []
    folder.write(8, b"x")
    assert changed_blocks(before, folder.fingerprint(before)) == [range(8, 10)]


def test_contents_are_read_again_only_where_a_stamp_has_changed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rows(*({"image": f"pictures/{number}.png"} for number in range(10)))
    before = folder.fingerprint()
    read: list[str] = []
    monkeypatch.setattr(named_files, "file_sha256", lambda path: read.append(path.name) or "x")
    assert folder.fingerprint(before)["contents"] == before["contents"]
    assert read == []
    folder.write(1, b"1")
    folder.fingerprint(before)
    assert read == ["0.png", "1.png", "2.png", "3.png"]


def test_files_in_messages_count_and_pictures_in_rows_do_not(folder: Folder) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "pictures/1.png"}}, {"type": "image", "path": "pictures/2.png"}]
    parts += [{"type": "image_url", "image_url": {"url": data_url(b"x")}}, {"type": "text", "text": "pictures/3.png"}]
    folder.rows({"m": [{"role": "user", "content": parts}]}, {"m": json.dumps([{"role": "user", "content": parts}])}, {"m": None})
    before = folder.fingerprint(messages="m")
    folder.write(3, b"x")
    assert changed_blocks(before, folder.fingerprint(before, messages="m")) == []
    folder.write(2, b"x")
    assert changed_blocks(before, folder.fingerprint(before, messages="m")) == [range(3)]


def test_what_no_row_can_read_is_not_opened(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named pipe would wait for a writer, for ever. A file that is refused for its size is as good as none."""
    monkeypatch.setattr(named_files, "MOST_BYTES", 8)
    os.mkfifo(folder.root / "pictures" / "pipe.png")
    folder.write(1, b"too large a file")
    read: list[str] = []
    monkeypatch.setattr(named_files, "file_sha256", lambda path: read.append(path.name) or path.read_bytes().hex())
    folder.rows(*({"image": f"pictures/{name}.png"} for name in ("pipe", "0", "1")))
    before = folder.fingerprint()
    assert read == ["0.png"]
    folder.write(1, b"another large file")
    assert changed_blocks(before, folder.fingerprint(before)) == []
    folder.write(1, b"small")
    assert changed_blocks(before, folder.fingerprint(before)) == [range(3)]


def test_the_drift_names_the_rows(folder: Folder) -> None:
    folder.rows({"image": "pictures/0.png"})
    inputs = {"limit": None, "sources": []}
    stored = inputs | {"pictures": folder.fingerprint()}
    folder.write(0, b"x")
    [drift] = inputs_drift(stored, inputs | {"pictures": folder.fingerprint()})
    assert str(drift) == "data.path: a picture that one of rows 0 to 0 names is new, changed or gone"
    assert inputs_drift(stored, inputs) == []
