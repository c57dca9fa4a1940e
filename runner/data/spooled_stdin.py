"""Rows piped into stdin: copied into the run directory, where they wait until the run accepts them. Knows no rows of them."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from ...configs.data import DataConfig
from ..core.errors import DataError, DriftError
from ..files.atomic import fsync_folder, replacing
from ..formats.source import BUFFER, FILE_FORMATS, WAITING, Source

SPOOL_NAMES = {name: f"stdin{each.extensions[0]}" for name, each in FILE_FORMATS.items()}


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


def spooled(form: str, spool: Path, afresh: bool) -> Source:
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
