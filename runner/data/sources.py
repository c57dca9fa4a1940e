"""Finds the files of ``data.path`` in reading order, each with its format and compression.

Knows file names and bytes, and no rows.
"""

import glob
import logging
import os
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from ...configs.schema import DataConfig
from ...configs.visible import visible
from ..core.errors import DataError
from ..formats.source import CODECS, EXTENSIONS, Source, by_extension
from .spooled_stdin import spooled

log = logging.getLogger("mlx_bulk")


def find_sources(data: DataConfig, spool: Path, afresh: bool = False) -> list[Source]:
    """Returns the input's sources in reading order: a list in its own order, a folder or glob by name.

    stdin ("-") is copied into ``spool`` and waits there. If nothing new is piped in, the rows kept there are the source. ``afresh``:
    the rows kept there are another run's. Raises DataError for a path that is missing, no regular file, or of unknown format.
    """
    paths = [data.path] if isinstance(data.path, str) else list(data.path)
    return [source for path in paths for source in _find(path, data, spool, afresh)]


def _find(path: str, data: DataConfig, spool: Path, afresh: bool) -> list[Source]:
    if path == "-":
        return [spooled(data.format, spool, afresh)]
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
    by_name, codec = by_extension(path)
    form_of_file = by_name if form == "auto" else form
    if form_of_file is None:
        formats = ", ".join(sorted(set(EXTENSIONS.values())))
        raise DataError(f"data.path: the format of {path} cannot be told from its name. Set data.format to one of {formats}.")
    return Source(str(path), form_of_file, codec)


def _in_folder(folder: Path, form: str) -> list[Source]:
    """Returns all files below ``folder`` with an extension of format ``form``, or of any format for "auto". Skips hidden files."""
    root = folder.resolve()
    sources: list[Source] = []
    outside: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        outside += [path for path in (Path(parent, name) for name in folders) if path.is_symlink()]
        for path in (Path(parent, name) for name in files if not name.startswith((".", "_"))):
            by_name, _ = by_extension(path)
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


def _missing(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"data.path: {path} does not exist; neither does the folder {path.parent}.")
    near = get_close_matches(path.name, sorted(other.name for other in path.parent.iterdir()), n=3)
    hint = f" Near names there: {', '.join(near)}." if near else ""
    return DataError(f"data.path: {path} does not exist (looked from {Path.cwd()}).{hint} A hub dataset is written hf:owner/name.")
