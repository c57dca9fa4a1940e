"""The files of pictures that a run's rows name, and a fingerprint of their contents, so that a changed one does not go unseen.

The fingerprint is in blocks of rows, as an input may grow at its end. Contents are read again only where a file's stamp has changed.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from time import time_ns
from typing import Any

from ...configs.schema import JobConfig
from ..core.errors import RowError
from ..core.requests import BadRow, Row
from ..data.column_paths import lookup
from ..data.reader import read_rows
from ..data.scan_result import Scan
from ..files.file_stamp import is_settled, stamp_of
from ..files.file_stamp import sha256 as file_sha256
from ..templates.chat_messages import PICTURE_PARTS
from .content_parts import listed_pictures, part_picture
from .row_pictures import folder_beside, messages_column, picture_folders
from .sources import MOST_BYTES, PictureSources

BLOCK = 1024  # rows
_FIRST = 64  # rows that show whether a column with bytes names files too


def files_fingerprint(
    scan: Scan, config: JobConfig, stored: dict[str, Any] | None, absent: Callable[[int, Path], bool] | None = None
) -> dict[str, Any] | None:
    """Returns ``{"rows", "stamps", "contents"}``: of the rows, a digest a block of the files' stamps, and one of their contents.

    stored: what the run's last start returned, None at its first. ``at``: where the stored rows end inside a block, the digest of that
    part of it. absent: says of a row's number and a file whether it counts as not there. None where rows name no files: they hold their
    pictures.
    """
    sources = PictureSources(picture_folders(config.data), fetch=False)
    rows = read_rows(scan, config.data, [range(scan.rows)])
    begin = list(islice(rows, _FIRST))
    if "binary" in str(scan.schema) and not any(True for row in begin for _ in named_files(row, config, sources)):
        return None
    blocks, had = _Blocks(stored, absent), None if stored is None else int(stored["rows"])
    for number, row in enumerate(_all(begin, rows)):
        if number == had and number % BLOCK:
            blocks.note_end(number)
        if number and number % BLOCK == 0:
            blocks.close(BLOCK)
        blocks.add(named_files(row, config, sources))
    if scan.rows:
        blocks.close(scan.rows % BLOCK or BLOCK)
    return {"rows": scan.rows, "stamps": blocks.stamps, "contents": blocks.contents, **blocks.at}


def changed_blocks(stored: dict[str, Any], now: dict[str, Any]) -> list[range]:
    """Returns the rows of the blocks in which a file is no longer what it was. Both are from ``files_fingerprint``."""
    had, changed = int(stored["rows"]), list[range]()
    for index, contents in enumerate(stored["contents"]):
        start, end = index * BLOCK, min((index + 1) * BLOCK, had)
        found = now["contents"][index] if index < len(now["contents"]) else None
        if end % BLOCK and end != now["rows"]:
            found = now["at"]["contents"] if now.get("at", {}).get("rows") == end else None
        if found != contents:
            changed.append(range(start, end))
    return changed


def named_files(row: Row | BadRow, config: JobConfig, sources: PictureSources) -> Iterator[Path]:
    """Yields the files of pictures that a row names; none for what is no file below the input's folder."""
    if isinstance(row, BadRow):
        return
    for value in named_values(row, config):
        with suppress(RowError):
            path = sources.source(value, "", folder_beside(row)).path
            if path is not None:
                yield path


def named_values(row: Row, config: JobConfig) -> Iterator[object]:
    """Yields what a row says its pictures are: those of ``prompt.images``, then those of the parts of its messages."""
    if (column := config.prompt.images) is not None:
        yield from (picture.value for picture in listed_pictures(lookup(row.columns, column), column))
    chat = "body" if config.data.format == "openai" else messages_column(config)
    if chat is not None:
        yield from (value for value in _parts(lookup(row.columns, chat)) if value is not None)


def is_unchanged_block(stored: dict[str, Any], index: int, files: list[list[Path]]) -> bool:
    """Returns whether a block's files are what they were. stored: from ``files_fingerprint``. files: of each row of the block."""
    had = {name: [stored[name][index]] for name in ("stamps", "contents")}
    blocks = _Blocks({"rows": len(files), **had}, files=files)
    blocks.close(len(files))
    return blocks.contents == had["contents"]


def _parts(value: Any) -> list[object]:
    """Returns what the parts of pictures in messages hold, wherever they lie."""
    if isinstance(value, str) and value[:1] in "[{" and '"image' in value:
        with suppress(ValueError, RecursionError):
            return _parts(json.loads(value))
    if isinstance(value, dict):
        if value.get("type") in PICTURE_PARTS:
            return [part_picture(value)]
        return [found for inner in value.values() for found in _parts(inner)]
    return [found for inner in value for found in _parts(inner)] if isinstance(value, list) else []


def _all(begin: list[Row | BadRow], rows: Iterable[Row | BadRow]) -> Iterator[Row | BadRow]:
    yield from begin
    yield from rows


@dataclass(slots=True)
class _Blocks:
    """The blocks so far. files: of the open block, a list a row."""

    stored: dict[str, Any] | None
    absent: Callable[[int, Path], bool] | None = None
    stamps: list[str] = field(default_factory=list[str])
    contents: list[str] = field(default_factory=list[str])
    at: dict[str, Any] = field(default_factory=dict[str, Any])
    files: list[list[Path]] = field(default_factory=list[list[Path]])
    hashes: dict[Path, str] = field(default_factory=dict[Path, str])

    def add(self, files: Iterable[Path]) -> None:
        self.files.append(list(files))

    def note_end(self, rows: int) -> None:
        """Notes the open block's contents where the stored rows end."""
        self.at = {"at": {"rows": rows, "contents": self._contents()}}

    def close(self, rows: int) -> None:
        """Ends a block of ``rows`` rows. Its contents are those stored where no stamp has changed."""
        index, stamps, old = len(self.stamps), self._stamps(), self.stored
        same = old is not None and index < len(old["stamps"]) and old["stamps"][index] == stamps != ""
        whole = old is not None and min(int(old["rows"]) - index * BLOCK, BLOCK) == rows
        self.contents.append(old["contents"][index] if old is not None and same and whole else self._contents())
        self.stamps.append(stamps)
        self.files, self.hashes = [], {}

    def _stamps(self) -> str:
        """Returns a digest of the block's stamps; empty where a file is so new that a later change may leave its stamp."""
        digest, now = sha256(), time_ns()
        for path in {path: None for files in self.files for path in files}:
            try:
                status = path.stat()
            except OSError:
                digest.update(f"{path} none\n".encode())
                continue
            if not is_settled(stamp_of(status), now):
                return ""
            digest.update(f"{path} {status.st_size} {stamp_of(status)}\n".encode())
        return digest.hexdigest()[:32]

    def _contents(self) -> str:
        digest, first = sha256(), len(self.stamps) * BLOCK
        for number, files in enumerate(self.files):
            for path in files:
                there = self.absent is None or not self.absent(first + number, path)
                digest.update(f"{number} {self._hash(path) if there else 'none'}\n".encode())
        return digest.hexdigest()[:32]

    def _hash(self, path: Path) -> str:
        """Returns a file's sha256. What no row can read is ``none``, and stays closed: to open a named pipe would wait for its writer."""
        if path not in self.hashes:
            try:
                status = path.stat()
                readable = S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES
                self.hashes[path] = file_sha256(path) if readable else "none"
            except OSError:
                self.hashes[path] = "none"
        return self.hashes[path]
