"""The files of a folder that may be input: all below it with a format, without hidden ones, run directories and metadata.

Knows names, and of contents only what marks a run directory or a saved dataset.
"""

import glob
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .saved_dataset import is_metadata, saved_files

# Of run.json and sweep.json, and of inputs.json where a start ended before run.json was written.
_MARKS = (
    ("run.json", {"schema_version", "identity", "inputs"}),
    ("sweep.json", {"schema_version", "cells"}),
    ("inputs.json", {"version", "sources", "schema", "check"}),
)
_OF_RECORDS = {"results", "errors"}  # a pattern that names one of these folders of a run means its records


@dataclass(slots=True)
class InputFolder:
    """The files below ``folder`` that may be input. ``run``: the run directory of this run, which is never input.

    outside: links that lead out of the folder; skipped: run directories. Both are known once ``files`` is exhausted.
    """

    folder: Path
    run: Path
    outside: set[Path] = field(default_factory=set[Path])
    skipped: set[Path] = field(default_factory=set[Path])

    def files(self) -> Iterator[Path]:
        """Yields the files. Goes through no link to a folder."""
        root = self.folder.resolve()
        for name, folders, files in os.walk(self.folder):
            parent = Path(name)
            visible_folders = [parent / folder for folder in folders if not folder.startswith((".", "_"))]
            self.outside |= {folder for folder in visible_folders if folder.is_symlink()}
            self.skipped |= {folder for folder in visible_folders if not folder.is_symlink() and self._is_run(folder)}
            folders[:] = [folder.name for folder in visible_folders if folder not in self.skipped]
            saved = saved_files(parent) if "state.json" in files else None
            for file in (parent / file for file in (files if saved is None else saved)):
                if file.name.startswith((".", "_")) or is_metadata(file):
                    continue
                if file.is_symlink() and not Path(os.path.realpath(file)).is_relative_to(root):
                    self.outside.add(file)
                else:
                    yield file

    def _is_run(self, folder: Path) -> bool:
        return folder.resolve() == self.run.resolve() or is_run_directory(folder)


def files_of_runs(files: list[Path], pattern: str, run: Path) -> dict[Path, Path]:
    """Returns which of the files that the glob ``pattern`` matches lie in a run directory, with that directory.

    ``run``: the run directory of this run. A pattern that names results or errors means the records of other runs: they are no match.
    """
    means_records = not _OF_RECORDS.isdisjoint(Path(pattern).parts)
    begin = glob_folder(pattern)
    known: dict[Path, bool] = {}
    found: dict[Path, Path] = {}
    for file in files:
        for folder in file.parents:
            if folder == begin or len(folder.parts) <= len(begin.parts):
                break
            if folder not in known:
                known[folder] = folder.resolve() == run.resolve() or (not means_records and is_run_directory(folder))
            if known[folder]:
                found[file] = folder
    return found


def is_run_directory(folder: Path) -> bool:
    """Returns True for the run directory of a run or a sweep, whole or just begun."""
    return any(keys <= _keys(folder / name) for name, keys in _MARKS)


def _keys(path: Path) -> set[str]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return set()
    return set(document) if isinstance(document, dict) else set()


def is_input(paths: Sequence[str], file: Path) -> bool:
    """Returns True if ``file`` is one of the files that ``data.path`` names, or lies in a folder that it names."""
    place = file.resolve()
    for path in paths:
        names = [path, *glob.glob(path, recursive=True)]  # noqa: PTH207 - Path.glob takes no absolute pattern
        if any(place == Path(name).resolve() or (Path(name).is_dir() and place.is_relative_to(Path(name).resolve())) for name in names):
            return True
    return False


def glob_folder(pattern: str) -> Path:
    """Returns the folder of a glob pattern above its first part with a wildcard."""
    parts = Path(pattern).parts
    first = next(number for number, part in enumerate(parts) if any(mark in part for mark in "*?["))
    return Path(*parts[:first])
