"""Finds what an interrupted run has done: checks commits against their files, and reads back the journals of open shards.

Leaves the run directory as if the last process had stopped cleanly. Knows nothing of configs, models or the writer's thread.
The caller holds the run's lock.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..core.errors import DriftError
from ..core.shard_layout import Layout
from ..files.atomic import fsync_folder
from ..files.file_stamp import Stamp, sha256, stamp_of
from .commit_log import Commit, CommitLog, append_retry, append_void, mend_commits, read_commits
from .journal import Header, Journal
from .open_journals import (
    continuable_journals,
    forget_errors,
    has_errors,
    holds_only,
    journal_files,
    read_journals,
    reopen_shard,
    uncommitted_headers,
    uncommitted_journals,
)
from .orphan_parts import adopt_orphans, clear_orphans
from .part_file import has_schema
from .paths import RunPaths
from .row_order import positions
from .shard_commit import base_batches
from .shard_ledger import Ledger

log = logging.getLogger("mlx_bulk")

_WAYS_OUT = "Restore the input, or choose another --output."


@dataclass(slots=True, frozen=True)
class Recovered:
    """The work that need not be done again.

    committed: shards of which nothing is left to do. done: open shards that have a journal. headers: what each of these journals
    is to become. bases: the commits that some of them continue. generations: each shard's highest.
    rows: rows resolved, of all rounds. records, errors: of the committed shards and the open ones together.
    """

    committed: frozenset[int]
    done: dict[int, Ledger]
    headers: dict[int, Header]
    bases: dict[int, Commit]
    generations: dict[int, int]
    rows: int
    records: int
    errors: int


def recover(paths: RunPaths, identity: str, layout: Layout, schema: pa.Schema, retry_errors: bool = False) -> Recovered:
    """Finds what is done of a run of this ``layout``, and mends what a crash, a bad disk or a longer input left behind.

    identity: digest of the run's identity. retry_errors: errors are to be done again, from this start on.
    A committed part that is missing or damaged is voided and done again. Parts that no line declares are adopted or set aside. A
    committed shard is opened again where its input has grown, or where its errors are to be done again.
    Raises DriftError where rows are committed that the input does not have, OSError for the disk's own errors.
    """
    recovery = _Recovery(paths, identity, layout, schema, mend_commits(paths))
    _require_committed_rows(paths, recovery.log, layout)
    recovery.read_journals()
    recovery.adopt_orphans()
    recovery.void_damaged_commits(retry_errors)
    recovery.drop_stale_journals()
    recovery.clear_orphans()
    if retry_errors:
        recovery.declare_retry()
    recovery.forget_retried_errors()
    recovery.reopen_shards()
    fsync_folder(paths.journal)
    return recovery.recovered()


def require_covered(paths: RunPaths, layout: Layout) -> None:
    """Raises DriftError where rows are finished that a run of this ``layout`` does not have. Changes nothing."""
    commit_log = read_commits(paths)
    _require_committed_rows(paths, commit_log, layout)
    for each in uncommitted_journals(journal_files(paths), commit_log):
        if each.journal is not None and not holds_only(each.journal, layout.rows_of(each.journal.header.shard)):
            raise DriftError(f"{each.path}: holds finished rows that the input, now of {layout.rows} rows, does not have. {_WAYS_OUT}")


def _require_committed_rows(paths: RunPaths, commit_log: CommitLog, layout: Layout) -> None:
    for shard, commit in commit_log.commits.items():
        if commit.rows > (rows := len(layout.rows_of(shard))):
            raise DriftError(
                f"{paths.commits}: shard {shard} is committed with {commit.rows} rows, the input now gives it {rows}. {_WAYS_OUT}"
            )


@dataclass(slots=True)
class _Recovery:
    """The state of a recovery. Its methods are the steps, in the order in which ``recover`` calls them.

    log: the commits in force. journals: those of open shards, by shard. Each step brings both up to date with the files.
    """

    paths: RunPaths
    identity: str
    layout: Layout
    schema: pa.Schema
    log: CommitLog
    journals: dict[int, Journal] = field(default_factory=dict[int, Journal])

    def read_journals(self) -> None:
        """Reads the journals. Those that cannot be continued are removed."""
        self.journals = read_journals(self.paths, self.schema, self.layout.rows_of, self.log.commits.keys())

    def adopt_orphans(self) -> None:
        """Declares whole parts of this run that no line of the commit log declares."""
        adopt_orphans(self.paths, self.identity, self.schema, self.log, self._uncommitted(), self.layout.rows_of)

    def void_damaged_commits(self, retry_errors: bool) -> None:
        """Takes back the commits whose files are missing or damaged. Parts that are read in this recovery are hashed first."""
        states = _file_states(self.paths.results) | _file_states(self.paths.errors)
        uncommitted = self._uncommitted()
        for shard, commit in list(self.log.commits.items()):
            is_read = shard in uncommitted or self._is_short(commit) or bool(commit.errors and (retry_errors or shard in self.log.retries))
            damage = _damage(self.paths, commit, states, trust_stamps=not is_read)
            results_part = self.paths.results_part(shard, commit.generation)
            if damage is None and is_read and not has_schema(results_part, self.schema):
                damage = f"{results_part} has columns that are not the run's any more"
            if damage is not None:
                log.warning("%s; its shard is done again", damage)
                append_void(self.paths, commit, damage)
                del self.log.commits[shard]

    def drop_stale_journals(self) -> None:
        """Removes journals that are committed by now, or continue a part that is not the committed one."""
        self.journals = continuable_journals(self.paths, self.journals, self.log)

    def clear_orphans(self) -> None:
        """Leaves only declared parts in their folders: others are removed or set aside."""
        clear_orphans(self.paths, self.log, self._uncommitted())

    def declare_retry(self) -> None:
        """Declares of which shards the errors are to be done again, before any of them is changed.

        If this process is killed, any later start goes on with the retry.
        """
        shards = self.log.commits.keys() | self.journals.keys()
        failed = {shard for shard in shards if has_errors(self.paths, self.journals.get(shard), self.log.commits.get(shard))}
        if failed:
            retry = 1 + max([*self.log.retries.values(), *(journal.header.retry for journal in self.journals.values())], default=0)
            append_retry(self.paths, retry, failed)
            self.log.retries |= dict.fromkeys(failed, retry)

    def forget_retried_errors(self) -> None:
        """Takes the errors that are done again out of the journals."""
        for shard, journal in self.journals.items():
            self.journals[shard] = forget_errors(self.paths, journal, self.log.commits.get(shard), self.log.retries.get(shard, 0))

    def reopen_shards(self) -> None:
        """Begins a journal for each committed shard that has rows or errors left to do."""
        for shard, commit in sorted(self.log.commits.items()):
            if shard not in self.journals and (self._is_short(commit) or (commit.errors and shard in self.log.retries)):
                self.journals[shard] = reopen_shard(self.paths, commit, self.log.retries.get(shard, 0))

    def recovered(self) -> Recovered:
        """Counts what is done, by the commits and the journals."""
        commits = self.log.commits
        done = {shard: self._ledger(journal) for shard, journal in self.journals.items()}
        committed = [commit for shard, commit in commits.items() if shard not in done]
        return Recovered(
            committed=frozenset(commit.shard for commit in committed),
            done=done,
            headers={shard: journal.header for shard, journal in self.journals.items()},
            bases={shard: commit for shard, commit in commits.items() if shard in done},
            generations=self.log.generations,
            rows=sum(commit.rows for commit in committed) + sum(ledger.rows - ledger.left for ledger in done.values()),
            records=sum(each.records for each in (*committed, *done.values())),
            errors=sum(each.errors for each in (*committed, *done.values())),
        )

    def _uncommitted(self) -> dict[int, Header]:
        return uncommitted_headers(self.journals, self.log)

    def _is_short(self, commit: Commit) -> bool:
        """Returns True when the input has grown in the shard since its commit."""
        return commit.rows < len(self.layout.rows_of(commit.shard))

    def _ledger(self, journal: Journal) -> Ledger:
        """Counts an open shard by its journal, and by the commit that it continues. The bytes of both have been checked."""
        shard, rows = journal.header.shard, self.layout.rows_of(journal.header.shard)
        ledger = Ledger(rows.start, len(rows))
        if (base := self.log.commits.get(shard)) is not None:
            results, errors = base_batches(self.paths, base)
            resolved = np.arange(rows.start, rows.start + base.rows)
            ledger.add_results(*positions(results))
            if journal.header.retry:
                resolved = np.setdiff1d(resolved, positions(errors)[0])
            else:
                ledger.add_errors(*positions(errors))
            ledger.resolve(resolved)
        ledger.add_results(*positions(journal.results))
        ledger.add_errors(*positions(journal.errors))
        return ledger


_FileStates = Mapping[Path, tuple[int, Stamp]]  # size in bytes, and stamp


def _file_states(folder: Path) -> dict[Path, tuple[int, Stamp]]:
    with os.scandir(folder) as entries:
        stats = {Path(entry.path): entry.stat() for entry in entries}
    return {path: (stat.st_size, stamp_of(stat)) for path, stat in stats.items()}


def _damage(paths: RunPaths, commit: Commit, states: _FileStates, *, trust_stamps: bool) -> str | None:
    """Says what is wrong with the files of a commit, or None. A file with the stamp of its commit is not read if stamps are trusted."""
    for part, file in commit.files(paths):
        if part not in states:
            return f"{part} is missing"
        size, stamp = states[part]
        if size != file.bytes:
            return f"{part} has {size} bytes, {file.bytes} were committed"
        if (not trust_stamps or stamp != file.stamp) and sha256(part) != file.sha256:
            return f"{part} is damaged (its sha256 is not the one committed)"
    return None
