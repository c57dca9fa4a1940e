"""A run that is to be exported: how much of it is there, its records with their schema, and what an export of it came to.

Takes no lock and changes nothing in the run. Knows no format and no place.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa
from tqdm import tqdm

from ...configs.errors import ConfigError
from ...runner.core.errors import RunDirError
from ...runner.core.shard_layout import total_rows
from ...runner.runs.failures import committed_drops
from ...runner.runs.run_files import notes_on, stored_run
from ...runner.store.commit_log import read_commits
from ...runner.store.paths import RunPaths
from ..terminal.tables import count_text
from .table_writers import Notes

_Item = TypeVar("_Item")


@dataclass(slots=True)
class ExportResult:
    """What an export came to. failures: those that are in it; files: (sha256 in hex, path) of each; notes: for who reads them."""

    to: str
    records: int
    failures: int = 0
    files: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    notes: Notes = field(default_factory=Notes)


@dataclass(slots=True, frozen=True)
class ExportedRun:
    """A run to be exported. stored: its run.json; rows: resolved and committed ones; of: those of the input.

    errors: what stands in errors/; dropped: the groups among it that were left out on purpose.
    """

    run: Path
    stored: dict[str, Any]
    complete: bool
    rows: int
    of: int
    records: int
    errors: int
    dropped: int

    @classmethod
    def at(cls, run: Path, *, partial: bool) -> Self:
        """The run directory ``run``. Raises RunDirError where it is none, ConfigError where it is not complete and not ``partial``.

        A file with a part of the rows looks like one with all of them: who wants one has to say so.
        """
        stored, log = stored_run(run), read_commits(RunPaths(run))
        rows, records, errors = (sum(getattr(commit, name) for commit in log.commits.values()) for name in ("rows", "records", "errors"))
        of = total_rows(stored)
        left_out = committed_drops(RunPaths(run)) if errors and stored["config"]["job"] == "rollout" else 0
        source = cls(run, stored, log.is_complete(of), rows, of, records, errors, left_out)
        if not source.complete and not partial:
            raise ConfigError(
                f"{run}: is not complete: {rows:,} of {source.of:,} rows are committed. Finish it with the command that started it, "
                "or export what is there with --partial."
            )
        return source

    @property
    def job(self) -> str:
        """The job's kind."""
        return str(self.stored["config"]["job"])

    def notes(self, *, with_errors: bool) -> Notes:
        """What is said of any export of the run; ``with_errors``: its failures are in it."""
        notes: Notes = [*notes_on(self.run)]
        if not self.complete:
            notes.append(f"the run is not complete: {self.rows:,} of {self.of:,} rows are committed; the others are missing here")
        if self.errors > self.dropped and not with_errors:
            notes.append(f"not in it: {self.errors - self.dropped:,} quarantined in errors/")
        if self.dropped and not with_errors:
            notes.append(f"not in it: {count_text(self.dropped, 'group')} dropped by the config, which errors/ names")
        return notes


def batches_with_progress(batches: Iterator[pa.RecordBatch], total: int, run: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The batches with their schema, told on a bar while they are read. Raises RunDirError where there are none."""
    first = next(batches, None)
    if first is None:
        raise RunDirError(f"{run}: has no records to export: no row of it is both done and committed")
    return first.schema, show_progress(chain([first], batches), total, len)


def show_progress(items: Iterable[_Item], total: int, size: Callable[[_Item], int]) -> Iterator[_Item]:
    """The items, with a bar on a terminal that shows how many of ``total`` have gone by."""
    with tqdm(total=total, unit=" records", disable=None, leave=False) as bar:
        for item in items:
            yield item
            bar.update(size(item))
