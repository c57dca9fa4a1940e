"""Finds the files of ``data.path`` in reading order, each with its format and compression.

Knows file names and bytes, and no rows.
"""

import errno
import glob
import io
import logging
import os
import shutil
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from ...configs.schema import DataConfig
from ...configs.visible import visible
from ..core.errors import DataError, DriftError
from ..files.atomic import fsync_folder, replacing

log = logging.getLogger("mlx_bulk")

EXTENSIONS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".csv": "csv", ".tsv": "csv",
    ".txt": "text", ".text": "text",
}  # fmt: skip
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
SPOOL_NAMES = {"jsonl": "stdin.jsonl", "parquet": "stdin.parquet", "arrow": "stdin.arrow", "csv": "stdin.csv", "text": "stdin.txt"}
WAITING = ".new"
BUFFER = 1 << 20


@dataclass(slots=True, frozen=True)
class Source:
    """One file of the input, or one hub dataset (``format`` "hub", ``path`` as in the config).

    ``format`` is jsonl, parquet, arrow, csv, text or hub. ``codec`` is pyarrow's name of the compression, or None. ``waiting``: rows
    just piped in, which lie beside ``path`` until the run accepts them (see ``keep_spooled``).
    """

    path: str
    format: str
    codec: str | None = None
    waiting: bool = False

    @property
    def file(self) -> Path:
        """The file that holds the source's bytes now."""
        return Path(self.path + WAITING if self.waiting else self.path)

    @property
    def separator(self) -> str:
        """The separator between the cells of a csv source, by its file name."""
        return "\t" if ".tsv" in Path(self.path.lower()).suffixes[-2:] else ","


def find_sources(data: DataConfig, spool: Path, afresh: bool = False) -> list[Source]:
    """Returns the input's sources in reading order: a list in its own order, a folder or glob by name.

    stdin ("-") is copied into ``spool`` and waits there. If nothing new is piped in, the rows kept there are the source. ``afresh``:
    the rows kept there are another run's. Raises DataError for a path that is missing, no regular file, or of unknown format.
    """
    paths = [data.path] if isinstance(data.path, str) else list(data.path)
    return [source for path in paths for source in _find(path, data, spool, afresh)]


def keep_spooled(source: Source) -> Source:
    """Replaces the rows kept from stdin by the waiting ones. Returns the source at its new place."""
    kept = replace(source, waiting=False)
    source.file.replace(kept.file)
    fsync_folder(kept.file.parent)
    return kept


def drop_spooled(spool: Path) -> None:
    """Removes rows that were piped in and that no run has accepted."""
    for name in SPOOL_NAMES.values():
        (spool / (name + WAITING)).unlink(missing_ok=True)


def reads_stdin(data: DataConfig) -> bool:
    """Returns True when rows come from stdin."""
    return "-" in ([data.path] if isinstance(data.path, str) else data.path)


def open_stream(source: Source) -> IO[bytes]:
    """Opens the source's bytes, decompressed. A file of several compressed members is read to the end of the last."""
    if source.codec is None:
        return source.file.open("rb", buffering=BUFFER)
    raw = pa.CompressedInputStream(pa.OSFile(str(source.file)), source.codec)
    return io.BufferedReader(cast(io.RawIOBase, raw), BUFFER)


@contextmanager
def source_errors(source: Source) -> Generator[None]:
    """Turns errors of reading or decoding into a DataError that names the source. The error of a full disk passes through."""
    try:
        yield
    except (OSError, EOFError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        kind = source.format if source.codec is None else f"{source.format} ({source.codec})"
        raise DataError(
            f"{source.path}: cannot be read as {kind}: {visible(str(error)).rstrip('.')}. Replace it, or correct data.format."
        ) from error


def _find(path: str, data: DataConfig, spool: Path, afresh: bool) -> list[Source]:
    if path == "-":
        return [_spooled(data.format, spool, afresh)]
    if path.startswith("hf:"):
        return [Source(path, "hub")]
    named = Path(path)
    if named.is_dir():
        return _in_folder(named, data.format)
    if named.exists() or named.is_symlink():
        return [_file(named, data.format)]
    if not glob.has_magic(path):
        raise _missing(named)
    names = [Path(name) for name in sorted(glob.glob(path, recursive=True))]  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = [name for name in names if name.is_file()]
    root = _root(path)
    outside = {name for name in files if root is not None and not name.parent.resolve().is_relative_to(root)}
    _warn_of_links(path, outside)
    sources = [_file(name, data.format) for name in files if name not in outside]
    if not sources:
        raise DataError(f"data.path: no file matches {path!r} (looked from {Path.cwd()}).")
    return sources


def _root(pattern: str) -> Path | None:
    """Returns the folder in which a ``**`` begins, or None without one. Links that lead out of it are not followed."""
    before, deep, _ = pattern.partition("**")
    return Path(before[: before.rfind("/") + 1] or ".").resolve() if deep and not glob.has_magic(before) else None


def _warn_of_links(where: str, outside: Collection[Path]) -> None:
    if outside:
        listed = ", ".join(visible(str(path)) for path in sorted(outside))
        log.warning("data.path: links in %s are not followed: %s. List them in data.path to read them.", where, listed)


def _file(path: Path, form: str) -> Source:
    if visible(str(path)) != str(path):
        raise DataError(f"data.path: the name of the file {str(path)!r} holds characters that no terminal shows. Rename it.")
    if not path.exists():
        raise DataError(f"data.path: {path} is a link to {path.readlink()}, which does not exist.")
    if not path.is_file():
        raise DataError(f"data.path: {path} is not a regular file, and the input is read twice. Pipe it in and set data.path to '-'.")
    by_name, codec = _by_extension(path)
    form_of_file = by_name if form == "auto" else form
    if form_of_file is None:
        formats = ", ".join(sorted(set(EXTENSIONS.values())))
        raise DataError(f"data.path: the format of {path} cannot be told from its name. Set data.format to one of {formats}.")
    return Source(str(path), form_of_file, codec)


def _by_extension(path: Path) -> tuple[str | None, str | None]:
    """Returns format and codec by the file's name: ("jsonl", "gzip") for rows.jsonl.gz, None for an unknown one."""
    codec = CODECS.get(path.suffix.lower())
    bare = path.with_suffix("") if codec else path
    return EXTENSIONS.get(bare.suffix.lower()), codec


def _in_folder(folder: Path, form: str) -> list[Source]:
    """Returns all files below ``folder`` with an extension of format ``form``, or of any format for "auto". Skips hidden files."""
    root = folder.resolve()
    sources: list[Source] = []
    outside: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        outside += [path for path in (Path(parent, name) for name in folders) if path.is_symlink()]
        for path in (Path(parent, name) for name in files if not name.startswith((".", "_"))):
            by_name, _ = _by_extension(path)
            if by_name is None or form not in ("auto", by_name):
                continue
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                outside.append(path)
            else:
                sources.append(_file(path, form))
    _warn_of_links(str(folder), outside)
    if not sources:
        kinds = " ".join(name for name, by_name in EXTENSIONS.items() if form in ("auto", by_name))
        raise DataError(f"data.path: the folder {folder} holds no file to read (looked for {kinds}, also with {' '.join(CODECS)}).")
    return sorted(sources, key=lambda source: source.path)


def _spooled(form: str, spool: Path, afresh: bool) -> Source:
    """Copies stdin into ``spool``. Returns the copy, or the rows kept there if stdin brings nothing new.

    Raises DriftError if stdin brings other rows than those of finished work.
    """
    form = "jsonl" if form == "auto" else form
    kept = Source(str(spool / SPOOL_NAMES[form]), form)
    has_kept = kept.file.exists() and not afresh
    if sys.stdin.isatty():
        if not has_kept:
            raise DataError("data.path is '-', but nothing is piped into stdin. Pipe the rows in, or name a file.")
        return kept
    spool.mkdir(parents=True, exist_ok=True)
    piped = replace(kept, waiting=True)
    with replacing(piped.file) as file:
        shutil.copyfileobj(sys.stdin.buffer, file, BUFFER)
    if not has_kept:
        return piped
    begins = _begins_with(piped.file, kept.file)
    nothing, same = not piped.file.stat().st_size, begins and piped.file.stat().st_size == kept.file.stat().st_size
    if nothing or same:
        piped.file.unlink()
        return kept
    if not begins and _has_work(spool):
        piped.file.unlink()
        raise DriftError(
            f"{spool}: stdin brings other rows than those the run began with, which it keeps in {kept.path}. "
            "Pipe those in again, or nothing (they are kept), choose another --output, or start over with --overwrite."
        )
    return piped


def _has_work(run: Path) -> bool:
    """Returns True when the run has finished rows of the spooled input, which then must stay the same."""
    journal = run / "journal"
    return (run / "commits.jsonl").exists() or (journal.is_dir() and any(journal.iterdir())) or any((run / "results").glob("part-*"))


def _begins_with(long: Path, short: Path) -> bool:
    with long.open("rb") as ours, short.open("rb") as theirs:
        while piece := theirs.read(BUFFER):
            if ours.read(len(piece)) != piece:
                return False
    return True


def _missing(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"data.path: {path} does not exist; neither does the folder {path.parent}.")
    near = get_close_matches(path.name, sorted(other.name for other in path.parent.iterdir()), n=3)
    hint = f" Near names there: {', '.join(near)}." if near else ""
    return DataError(f"data.path: {path} does not exist (looked from {Path.cwd()}).{hint} A hub dataset is written hf:owner/name.")
