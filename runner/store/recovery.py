"""What an interrupted run has done: commits checked against their files, journals of open shards read back.

Leaves the run directory as if the last process had stopped cleanly. Knows nothing of configs, models or the writer's
thread; the caller holds the run's lock.
"""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
    has_errors,
    headers,
    journal_files,
    read_journals,
    reopen,
    uncommitted_journals,
    unfinished_journals,
    within,
    without_errors,
)
from .orphan_parts import adopt, put_away
from .part_file import has_schema
from .paths import RunPaths
from .row_order import positions
from .shard_commit import base_batches
from .shard_ledger import Ledger

log = logging.getLogger("mlx_bulk")

_WAYS_OUT = "Restore the input, or choose another --output."

_Found = dict[Path, tuple[int, Stamp]]  # size in bytes, and stamp


@dataclass(slots=True, frozen=True)
class Recovered:
    """What need not be done again.

    committed: shards of which nothing is left to do. done: open shards that have a journal; headers: what each is to become;
    bases: the commits that some of them continue. generations: each shard's highest.
    rows: rows resolved, of all rounds; records, errors: of the committed shards and the open ones together.
    """

    committed: frozenset[int]
    done: dict[int, Ledger]
    headers: dict[int, Header]
    bases: dict[int, Commit]
    generations: dict[int, int]
    rows: int
    records: int
    errors: int


def recover(paths: RunPaths, run: str, layout: Layout, schema: pa.Schema, retry_errors: bool = False) -> Recovered:
    """Reads what is done of a run of this ``layout``, and mends what a crash, a bad disk or a longer input left behind.

    run: digest of the run's identity. A committed part that is missing or damaged is voided and done again; parts that no line
    declares are adopted or set aside. A committed shard is reopened where the input has since grown there, or, with ``retry_errors``
    now or at an earlier start, where it has errors. Raises DriftError where rows are committed that the input does not have, OSError for
    the disk's own errors.
    """
    rows_of = layout.rows_of
    commits = mend_commits(paths)
    _require_committed(paths, commits, rows_of)
    journals = read_journals(paths, schema, rows_of, commits.commits.keys())
    adopt(paths, run, schema, commits, headers(journals, commits), rows_of)
    reopening = {
        shard
        for shard, commit in commits.commits.items()
        if commit.rows < len(rows_of(shard)) or (commit.errors and (retry_errors or shard in commits.retries))
    }
    _void_damaged(paths, schema, commits, reopening | headers(journals, commits).keys())
    journals = unfinished_journals(paths, journals, commits)
    put_away(paths, commits, headers(journals, commits))
    if retry_errors:
        _note_retry(paths, commits, journals)
    journals = {
        shard: without_errors(paths, each, commits.commits.get(shard), commits.retries.get(shard, 0)) for shard, each in journals.items()
    }
    for shard, commit in sorted(commits.commits.items()):
        if shard in reopening and shard not in journals and (commit.rows < len(rows_of(shard)) or shard in commits.retries):
            journals[shard] = reopen(paths, commit, commits.retries.get(shard, 0))
    fsync_folder(paths.journal)
    done = {shard: _ledger(paths, each, commits.commits.get(shard), rows_of(shard)) for shard, each in journals.items()}
    committed = [commit for shard, commit in commits.commits.items() if shard not in done]
    return Recovered(
        committed=frozenset(commit.shard for commit in committed),
        done=done,
        headers={shard: each.header for shard, each in journals.items()},
        bases={shard: commit for shard, commit in commits.commits.items() if shard in done},
        generations=commits.generations,
        rows=sum(commit.rows for commit in committed) + sum(ledger.rows - ledger.left for ledger in done.values()),
        records=sum(each.records for each in (*committed, *done.values())),
        errors=sum(each.errors for each in (*committed, *done.values())),
    )


def require_covered(paths: RunPaths, layout: Layout) -> None:
    """Raises DriftError where rows are finished that a run of this ``layout`` does not have. Changes nothing."""
    commits = read_commits(paths)
    _require_committed(paths, commits, layout.rows_of)
    for each in uncommitted_journals(journal_files(paths), commits):
        if each.journal is not None and not within(each.journal, layout.rows_of(each.journal.header.shard)):
            raise DriftError(f"{each.path}: holds finished rows that the input, now of {layout.rows} rows, does not have. {_WAYS_OUT}")


def _require_committed(paths: RunPaths, commits: CommitLog, rows_of: Callable[[int], range]) -> None:
    for shard, commit in commits.commits.items():
        if commit.rows > len(rows_of(shard)):
            raise DriftError(
                f"{paths.commits}: shard {shard} is committed with {commit.rows} rows, the input now gives it {len(rows_of(shard))}. "
                f"{_WAYS_OUT}"
            )


def _note_retry(paths: RunPaths, commits: CommitLog, journals: dict[int, Journal]) -> None:
    """Declares, before the first of them is touched, of which shards the errors are to be done again: cut short, any start goes on."""
    shards = commits.commits.keys() | journals.keys()
    asked = {shard for shard in shards if has_errors(paths, journals.get(shard), commits.commits.get(shard))}
    if asked:
        retry = 1 + max([*commits.retries.values(), *(each.header.retry for each in journals.values())], default=0)
        append_retry(paths, retry, asked)
        commits.retries |= dict.fromkeys(asked, retry)


def _void_damaged(paths: RunPaths, schema: pa.Schema, commits: CommitLog, read: Collection[int]) -> None:
    """Takes back the commits whose files are not the ones committed. Of the shards in ``read`` no stamp is trusted."""
    found = _found(paths.results) | _found(paths.errors)
    for shard, commit in list(commits.commits.items()):
        damage = _damage(paths, commit, found, trusting=shard not in read)
        if damage is None and shard in read and not has_schema(paths.results_part(shard, commit.generation), schema):
            damage = f"{paths.results_part(shard, commit.generation)} has columns that are not the run's any more"
        if damage is not None:
            log.warning("%s; its shard is done again", damage)
            append_void(paths, commit, damage)
            del commits.commits[shard]


def _found(folder: Path) -> _Found:
    with os.scandir(folder) as entries:
        stats = {Path(entry.path): entry.stat() for entry in entries}
    return {path: (stat.st_size, stamp_of(stat)) for path, stat in stats.items()}


def _damage(paths: RunPaths, commit: Commit, found: _Found, *, trusting: bool) -> str | None:
    """What is wrong with the files of a commit, or None."""
    for part, file in commit.files(paths):
        if part not in found:
            return f"{part} is missing"
        size, stamp = found[part]
        if size != file.bytes:
            return f"{part} has {size} bytes, {file.bytes} were committed"
        if (not trusting or stamp != file.stamp) and sha256(part) != file.sha256:
            return f"{part} is damaged (its sha256 is not the one committed)"
    return None


def _ledger(paths: RunPaths, each: Journal, base: Commit | None, rows: range) -> Ledger:
    """What is done of an open shard: by its journal, and by the commit that this continues, whose bytes have been checked."""
    ledger = Ledger(rows.start, len(rows))
    if base is not None:
        results, errors = base_batches(paths, base)
        whole = np.arange(rows.start, rows.start + base.rows)
        ledger.add_results(*positions(results))
        if each.header.retry:
            whole = np.setdiff1d(whole, positions(errors)[0])
        else:
            ledger.add_errors(*positions(errors))
        ledger.resolve(whole)
    ledger.add_results(*positions(each.results))
    ledger.add_errors(*positions(each.errors))
    return ledger
