"""Finds the files of ``data.path`` in reading order, each with its format and compression.

Knows file names and bytes, and no rows.
"""

import glob
import json
import logging
import os
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from ...configs.data import DataConfig
from ...configs.visible import visible
from ..core.errors import DataError
from ..formats.csv_format import other_delimiter
from ..formats.json_array import holds_array
from ..formats.magic_bytes import require_text
from ..formats.source import CODECS, EXTENSIONS, Source, by_extension, has_format
from .input_folder import InputFolder, files_of_runs, glob_folder, is_run_directory
from .saved_dataset import is_metadata
from .splits import Listing, names_in_words, readme_configs, split_sources, splits_of
from .spooled_stdin import spooled

log = logging.getLogger("mlx_bulk")


def find_sources(data: DataConfig, spool: Path, afresh: bool = False) -> list[Source]:
    """Returns the input's sources in reading order: a list in its own order, a folder or glob by name.

    ``spool``: the run directory, which is never input. stdin ("-") is copied into it and waits there. If nothing new is piped in, the
    rows kept there are the source. ``afresh``: the rows kept there are another run's. Raises DataError for a path that is missing, no
    regular file, or of unknown format, and for a split that no file has.
    """
    return [source for _, source in _named_sources(data, spool, afresh)]


def find_distinct_sources(data: DataConfig, run: Path, afresh: bool = False) -> list[Source]:
    """Returns the same for a start of a run. Raises DataError as ``find_sources``, and for a file that is named twice in any spelling.

    ``run``: the run directory. A run that began with such a file, before it was refused, goes on with it.
    """
    named = _named_sources(data, run, afresh)
    if doubles := list(_doubles(named)):
        path, count = (None, 0) if afresh else _begun_with(run)
        for earlier, later in doubles:
            if later >= count and path != data.path:
                raise DataError(_named_twice(named[earlier], named[later]))
            log.warning("data.path: %s is read twice, as it was when the run began.", named[later][1].path)
    return [source for _, source in named]


def _named_sources(data: DataConfig, spool: Path, afresh: bool) -> list[tuple[str, Source]]:
    """Returns each source with the entry of ``data.path`` by which it was found."""
    paths = [data.path] if isinstance(data.path, str) else list(data.path)
    found = [_find(path, data, spool, afresh) for path in paths]
    local = [listing for listing in found if isinstance(listing, Listing)]
    of_hub = data.reads_hub  # then split and config are the hub dataset's
    chosen = set[Source]() if of_hub else _chosen(local, data)
    return [
        (path, _as_read(source, data))
        for path, listing in zip(paths, found, strict=True)
        for source in (listing.sources if isinstance(listing, Listing) else listing)
        if of_hub or not isinstance(listing, Listing) or source in chosen
    ]


def _doubles(named: Sequence[tuple[str, Source]]) -> Iterator[tuple[int, int]]:
    """Yields the places of each source whose file stands earlier in ``named`` already, with that earlier place.

    Links lead to the file itself. Two hard links are two files: nothing tells which of them is meant to be left out.
    """
    seen: dict[tuple[int, int], list[int]] = {}
    for place, (_, source) in enumerate(named):
        if source.format == "hub":
            continue
        with suppress(OSError):  # a file that is gone meanwhile is told of by whoever reads it
            status = source.file.stat()
            others = seen.setdefault((status.st_dev, status.st_ino), [])
            earlier = [other for other in others if _real_name(named[other][1]) == _real_name(source)]
            others.append(place)
            if earlier:
                yield earlier[0], place


def _real_name(source: Source) -> str:
    """Returns the name of the file without links, and without what some file systems do not tell apart: case, and ways to write é."""
    return unicodedata.normalize("NFC", os.path.realpath(source.file)).casefold()


def _begun_with(run: Path) -> tuple[object, int]:
    """Returns the ``data.path`` of the run in the directory ``run``, and how many files it has read; None and 0 where there is no run."""
    try:
        document = json.loads((run / "run.json").read_bytes())
        return document["config"]["data"]["path"], len(document["inputs"]["sources"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, 0


def _named_twice(one: tuple[str, Source], other: tuple[str, Source]) -> str:
    (first, earlier), (second, later) = one, other
    same = earlier.path == later.path
    what = f"{later.path} is named twice" if same else f"{later.path} and {earlier.path} are the same file, named"
    if first != second:
        return f"data.path: {what} by {first!r} and {second!r}: its rows would be done twice. Name it once."
    cure = "Write it with one '**'" if same else "Remove one of the two, or list in data.path the files to read"
    return f"data.path: {what} by {first!r}: its rows would be done twice. {cure}."


def _as_read(source: Source, data: DataConfig) -> Source:
    """Returns the source with what its content says of its format: an array of JSON, or a csv's delimiter. Raises DataError for no text."""
    require_text(source)
    if source.format == "jsonl" and data.format == "auto" and holds_array(source):
        source = replace(source, format="json")
    return _with_delimiter(source, data.delimiter)


def _with_delimiter(source: Source, delimiter: str | None) -> Source:
    """Returns a csv source with the delimiter that is set, or that its first lines have; others as they are."""
    if source.format != "csv":
        if delimiter is not None:
            raise DataError(f"data.delimiter: found {delimiter!r}, but {source.path} is read as {source.format}, not as csv. Remove it.")
        return source
    found = delimiter or other_delimiter(source)
    if found is None or found == source.separator:
        return source
    if delimiter is None:
        name = "tabs stand" if found == "\t" else f"{found!r} stands"
        _say(f"{source.path}: {name} between the cells, by its first lines. data.delimiter sets another.")
    return replace(source, delimiter=found)


def _chosen(listings: Sequence[Listing], data: DataConfig) -> set[Source]:
    """Returns the local files of ``data.config`` and ``data.split``. Says where files of several are read as one input."""
    if data.split is not None and listings:
        return split_sources(listings, data.split, data.config)
    chosen: set[Source] = set()
    for listing in listings:
        configs = readme_configs(listing.folder) if listing.whole and data.config is None else {}
        splits = splits_of(listing, data.config) if len(configs) <= 1 else {}
        if len(configs) > 1:
            _say(f"data.path: {listing.folder} holds {names_in_words(configs)}, and all are read. data.config picks one of them.")
        elif len(splits) > 1:
            _say(f"data.path: {listing.folder} holds the splits {names_in_words(splits)}, and all are read. data.split picks one.")
        if data.config is None:
            chosen.update(listing.sources)
        else:
            chosen.update(source for split in splits.values() for source in split)
    return chosen


@cache
def _say(text: str) -> None:
    """Logs a line about the input, once a process: a sweep reads one input for each of its runs."""
    log.info("%s", text)


def _find(path: str, data: DataConfig, spool: Path, afresh: bool) -> Listing | list[Source]:
    if path == "-":
        return [spooled(data.file_format, spool, afresh)]
    if path.startswith("hf:"):
        return [Source(path, "hub")]
    named = Path(path)
    if named.is_dir():
        return Listing(named, _in_folder(named, data.file_format, spool), whole=True)
    if named.exists() or named.is_symlink():
        return Listing(named.parent, [_file(named, data.file_format)])
    if not glob.has_magic(path):
        raise _missing(named)
    return Listing(glob_folder(path), _matches(path, data.file_format, spool))


def _matches(pattern: str, form: str, run: Path) -> list[Source]:
    names = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = [name for name in names if name.is_file()]
    root = _root(pattern)
    outside = {name for name in files if root is not None and not name.parent.resolve().is_relative_to(root)}
    _warn_of_links(pattern, outside)
    of_runs = files_of_runs(files, pattern, run)
    _tell_runs(set(of_runs.values()))
    sources = [_file(name, form) for name in files if name not in outside and name not in of_runs and not is_metadata(name)]
    if not sources:
        raise DataError(f"data.path: no file matches {pattern!r} (looked from {Path.cwd()}){_but_runs(of_runs)}.")
    return sources


def _tell_runs(skipped: Collection[Path]) -> None:
    if skipped:
        _say(f"data.path: leaves out {names_in_words(map(str, sorted(skipped)))}, as run directories are not input.")


def _but_runs(skipped: Collection[Path]) -> str:
    return ", besides those in run directories, which are not input; name their results/ to read the records" if skipped else ""


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
        formats = ", ".join(sorted({*EXTENSIONS.values(), "json"}))
        raise DataError(f"data.path: the format of {path} cannot be told from its name. Set data.format to one of {formats}.")
    return Source(str(path), form_of_file, codec)


def _in_folder(folder: Path, form: str, run: Path) -> list[Source]:
    """Returns all files below ``folder`` with an extension of format ``form``, or of any format for "auto". Skips hidden files."""
    listed = InputFolder(folder, run)
    if is_run_directory(folder):
        raise DataError(f"data.path: {folder} is a run directory, which is not input. Name its results/ to read the records.")
    sources = [_file(file, form) for file in listed.files() if has_format(file, form)]
    _warn_of_links(str(folder), listed.outside)
    _tell_runs(listed.skipped)
    if not sources:
        kinds = " ".join(name for name in EXTENSIONS if has_format(Path(f"rows{name}"), form))
        looked = f"looked for {kinds}, also with {' '.join(CODECS)}"
        raise DataError(f"data.path: the folder {folder} holds no file to read ({looked}){_but_runs(listed.skipped)}.")
    return sorted(sources, key=lambda source: source.path)


def _missing(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"data.path: {path} does not exist; neither does the folder {path.parent}.")
    near = get_close_matches(path.name, sorted(other.name for other in path.parent.iterdir()), n=3)
    hint = f" Near names there: {', '.join(near)}." if near else ""
    return DataError(f"data.path: {path} does not exist (looked from {Path.cwd()}).{hint} A hub dataset is written hf:owner/name.")
