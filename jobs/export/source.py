"""Reads a run for export: how much of it is done, and its records with their schema.

Takes no lock and changes nothing in the run. Knows no format and no target.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa
from tqdm import tqdm

from ...configs.errors import ConfigError
from ...runner.core.errors import RunDirError
from ...runner.core.shard_layout import total_rows
from ...runner.runs.failures import committed_drops, dropped_groups
from ...runner.runs.run_files import notes_on, stored_run
from ...runner.store.commit_log import read_commits
from ...runner.store.paths import RunPaths
from ...runner.store.results import OpenShards, read_errors, read_finished, read_results
from ..terminal.tables import count_text
from .table_writers import Notes

_Item = TypeVar("_Item")


@dataclass(slots=True, frozen=True)
class ExportedRun:
    """A run to export. stored: its run.json; rows: resolved and committed ones; of: those of the input.

    records, errors: results and failures. dropped: the groups among these that the config dropped. open_shards: journals whose records
    are exported too, and are in these counts; None where only committed ones are.
    """

    run: Path
    stored: dict[str, Any]
    complete: bool
    rows: int
    of: int
    records: int
    errors: int
    dropped: int
    open_shards: OpenShards | None

    @classmethod
    def at(cls, run: Path, *, partial: bool) -> Self:
        """Opens the run directory ``run``. Raises RunDirError where it is none, ConfigError if it is incomplete without ``partial``.

        A file with some of the rows looks like one with all of them, so the user has to ask for it.
        """
        stored, log = stored_run(run), read_commits(RunPaths(run))
        rows, records, errors = (sum(getattr(commit, name) for commit in log.commits.values()) for name in ("rows", "records", "errors"))
        of = total_rows(stored)
        complete = log.is_complete(of)
        held = None if complete or not partial else OpenShards.of(run)
        rollout = stored["config"]["job"] == "rollout"
        dropped = 0 if not rollout else committed_drops(RunPaths(run)) if held is None else dropped_groups(RunPaths(run))
        records, errors = (records, errors) if held is None else (records + held.records, errors + held.errors)
        source = cls(run, stored, complete, rows, of, records, errors, dropped, held)
        if not source.complete and not partial:
            raise ConfigError(
                f"{run}: is not complete: {rows:,} of {source.of:,} rows are committed. Finish it with the command that started it, "
                "or export what is there with --partial."
            )
        return source

    def without_open_shards(self) -> Self:
        """Returns the run without the records of open shards."""
        if (held := self.open_shards) is None:
            return self
        return replace(self, records=self.records - held.records, errors=self.errors - held.errors, open_shards=None)

    def results(self) -> Iterator[pa.RecordBatch]:
        """Yields the records in input order."""
        return read_results(self.run) if self.open_shards is None else read_finished(self.run, self.open_shards)

    def failures(self) -> Iterator[pa.RecordBatch]:
        """Yields the failures in input order."""
        return read_errors(self.run) if self.open_shards is None else read_finished(self.run, self.open_shards, errors=True)

    @property
    def job(self) -> str:
        """The job's kind."""
        return str(self.stored["config"]["job"])

    def notes(self, *, with_errors: bool) -> Notes:
        """Returns the notes on any export of the run; ``with_errors``: the export holds its failures."""
        notes: Notes = [*notes_on(self.run)]
        if not self.complete:
            held = 0 if self.open_shards is None else self.open_shards.records
            here = f" but for {count_text(held, 'finished record')} of theirs, which may be some of a row's samples" if held else ""
            notes.append(f"the run is not complete: {self.rows:,} of {self.of:,} rows are committed; the others are missing here{here}")
        if self.errors > self.dropped and not with_errors:
            notes.append(f"not in it: {self.errors - self.dropped:,} quarantined in errors/")
        if self.dropped and not with_errors:
            notes.append(f"not in it: {count_text(self.dropped, 'group')} dropped by the config, which errors/ names")
        return notes


def batches_with_progress(batches: Iterator[pa.RecordBatch], total: int, run: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Returns the schema and the batches, with a progress bar while they are read. Raises RunDirError where there are none."""
    first = next(batches, None)
    if first is None:
        raise RunDirError(f"{run}: has no records to export: no row of it is finished and saved")
    return first.schema, show_progress(chain([first], batches), total, len)


def show_progress(items: Iterable[_Item], total: int, size: Callable[[_Item], int]) -> Iterator[_Item]:
    """Yields the items, with a bar on a terminal that shows how many of ``total`` have passed."""
    with tqdm(total=total, unit=" records", disable=None, leave=False) as bar:
        for item in items:
            yield item
            bar.update(size(item))
