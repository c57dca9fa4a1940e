"""What an interrupted run has done: commits checked against their files, journals of open shards read back.

Leaves the run directory as if the last process had stopped cleanly. Knows nothing of configs, models or the writer's
thread; the caller holds the run's lock.
"""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from . import journal
from .commits import Commit, CommitLog, append_void, mend_commits
from .durable import fsync_folder, sha256
from .errors import RunDirError
from .parts import ERRORS_SCHEMA
from .paths import OWN_JOURNALS, OWN_PARTS, RunPaths, part_name

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True)
class Ledger:
    """Which rows and samples of one open shard are resolved, as a result or as an error; ``failed`` rows failed whole."""

    samples: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    failed: set[int] = field(default_factory=set[int])
    records: int = 0
    errors: int = 0

    def has(self, row: int, sample: int) -> bool:
        """Whether this sample needs no more work."""
        return row in self.failed or sample in self.samples.get(row, ())

    def add_result(self, row: int, sample: int) -> None:
        """Counts a record in."""
        self.samples.setdefault(row, set()).add(sample)
        self.records += 1

    def add_error(self, row: int, sample: int | None) -> None:
        """``sample`` None: the whole row failed."""
        if sample is None:
            self.failed.add(row)
        else:
            self.samples.setdefault(row, set()).add(sample)
        self.errors += 1


@dataclass(slots=True, frozen=True)
class Recovered:
    """What need not be done again. ``done``: open shards that have a journal. ``generations``: each shard's last.

    rows: input rows of the committed shards; records, errors: of the committed shards and the journals together.
    """

    committed: frozenset[int]
    done: dict[int, Ledger]
    generations: dict[int, int]
    rows: int
    records: int
    errors: int


def shard_rows(shard: int, rows: int, rows_per_shard: int) -> int:
    """How many of the input's ``rows`` are in ``shard``."""
    return max(0, min(rows_per_shard, rows - shard * rows_per_shard))


def recover(paths: RunPaths, rows: int, rows_per_shard: int, schema: pa.Schema, retry_errors: bool = False) -> Recovered:
    """Reads what is done of an input of ``rows`` rows, and mends what a crash, a bad disk or a longer input left behind.

    A committed part that is missing or damaged is voided and done again. A
    committed shard that the input has since extended is opened again, its finished rows kept. Raises RunDirError where
    commits.jsonl is damaged or has rows that the input does not have, OSError for the disk's own errors.
    """
    commit_log = mend_commits(paths)
    sizes = {folder: _sizes(folder) for folder in (paths.results, paths.errors, paths.journal)}
    for commit in list(commit_log.commits.values()):
        expected = shard_rows(commit.shard, rows, rows_per_shard)
        if commit.rows > expected:
            raise RunDirError(
                f"{paths.commits}: shard {commit.shard} is committed with {commit.rows} rows, the input now gives it {expected}. "
                "Restore the input, or choose another --output."
            )
        if damage := _damage(paths, commit, sizes):
            log.warning("%s: its shard is done again", damage)
            _void(paths, commit_log, commit, damage)
        elif commit.rows < expected:
            _copy_to_journal(paths, commit, schema)
            _void(paths, commit_log, commit, f"the input now has {expected} rows here")
    _sweep(paths, commit_log)
    return _recovered(paths, commit_log, schema)


def _sizes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}


def _damage(paths: RunPaths, commit: Commit, sizes: dict[Path, dict[str, int]]) -> str | None:
    """What is wrong with a committed part, or None."""
    expected = [(paths.results, commit.results_bytes, commit.results_sha256)]
    if commit.errors_sha256 is not None:
        expected.append((paths.errors, commit.errors_bytes, commit.errors_sha256))
    for folder, size, digest in expected:
        part = folder / part_name(commit.shard)
        if part.name not in sizes[folder]:
            return f"{part} is missing"
        if sizes[folder][part.name] != size:
            return f"{part} has {sizes[folder][part.name]} bytes, {size} were committed"
        if sha256(part) != digest:
            return f"{part} is damaged: its sha256 is not the one committed"
    return None


def _void(paths: RunPaths, commit_log: CommitLog, commit: Commit, reason: str) -> None:
    append_void(paths, commit.shard, commit.generation + 1, reason)
    commit_log.generations[commit.shard] = commit.generation + 1
    del commit_log.commits[commit.shard]


def _copy_to_journal(paths: RunPaths, commit: Commit, schema: pa.Schema) -> None:
    """Opens a committed shard again without losing it: until the void line is written, its commit stands."""
    target = paths.journal_of(commit.shard)
    target.unlink(missing_ok=True)
    parts = [(paths.results_part(commit.shard), journal.RESULTS, schema)]
    if commit.errors_sha256 is not None:
        parts.append((paths.errors_part(commit.shard), journal.ERRORS, ERRORS_SCHEMA))
    for part, kind, expected in parts:
        with pa.memory_map(str(part)) as file:
            reader = pa.ipc.open_file(file)
            if not reader.schema.equals(expected):
                log.warning("%s: its columns are not the run's any more; its shard is done again", part)
                target.unlink(missing_ok=True)
                return
            for number in range(reader.num_record_batches):
                journal.append(target, kind, reader.get_batch(number))
    if target.exists():
        journal.sync(target)


def _sweep(paths: RunPaths, commit_log: CommitLog) -> None:
    """Removes what a crash left: temporary files, journals of committed shards, parts that no line declares.

    The rows of such a part are in its journal. Where there is none the part is set aside, not removed.
    """
    committed = {part_name(shard) for shard in commit_log.commits}
    with_errors = {part_name(shard) for shard, commit in commit_log.commits.items() if commit.errors}
    for folder, kept in ((paths.results, committed), (paths.errors, with_errors)):
        for part in _undeclared(folder, kept):
            if part.suffix == ".tmp" or part.name in committed or (paths.journal / part.stem.removeprefix("part-")).exists():
                part.unlink()
            else:
                log.warning("%s: no commit declares it; set aside as %s.orphan", part, part.name)
                part.replace(part.with_name(part.name + ".orphan"))
        fsync_folder(folder)
    for shard in _journals(paths):
        if shard in commit_log.commits:
            paths.journal_of(shard).unlink()
    fsync_folder(paths.journal)


def _undeclared(folder: Path, kept: set[str]) -> list[Path]:
    return [part for part in folder.iterdir() if part.name not in kept and OWN_PARTS.fullmatch(part.name) and part.suffix != ".orphan"]


def _journals(paths: RunPaths) -> list[int]:
    return sorted(int(file.name) for file in paths.journal.iterdir() if OWN_JOURNALS.fullmatch(file.name))


def _recovered(paths: RunPaths, commit_log: CommitLog, schema: pa.Schema) -> Recovered:
    done: dict[int, Ledger] = {}
    for shard in _journals(paths):
        results, errors = journal.read(paths.journal_of(shard))
        if any(not batch.schema.equals(schema) for batch in results):
            log.warning("%s: its columns are not the run's any more; its rows are done again", paths.journal_of(shard))
            paths.journal_of(shard).unlink()
            continue
        done[shard] = _ledger(results, errors)
    commits = commit_log.commits.values()
    return Recovered(
        committed=frozenset(commit_log.commits),
        done=done,
        generations=commit_log.generations,
        rows=sum(commit.rows for commit in commits),
        records=sum(commit.records for commit in commits) + sum(ledger.records for ledger in done.values()),
        errors=sum(commit.errors for commit in commits) + sum(ledger.errors for ledger in done.values()),
    )


def _ledger(results: list[pa.RecordBatch], errors: list[pa.RecordBatch]) -> Ledger:
    ledger = Ledger()
    for batch in results:
        samples = batch.column("sample").to_pylist() if "sample" in batch.schema.names else [0] * batch.num_rows
        for row, sample in zip(batch.column("row").to_pylist(), samples, strict=True):
            ledger.add_result(row, sample)
    for batch in errors:
        for row, sample in zip(batch.column("row").to_pylist(), batch.column("sample").to_pylist(), strict=True):
            ledger.add_error(row, sample)
    return ledger
