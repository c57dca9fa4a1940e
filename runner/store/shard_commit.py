"""Turns a finished shard into parts: merges its journal with the generation it continues, and declares the result.

The order of the steps makes this safe. After a kill between any two of them, either the journal still exists or the line in the
commit log does. A committed file is never written to. Does not know who fills journals, nor what a crash leaves.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..core.errors import RunDirError
from ..files.atomic import fsync_folder
from ..files.disk_space import require_room
from ..files.file_stamp import sha256
from . import journal
from .commit_log import Commit, append_commit
from .journal import Header, Journal
from .part_file import PartDeclaration, errors_schema, read_part, write_part
from .paths import RunPaths
from .row_order import positions, sorted_records
from .shard_ledger import Ledger

_AGAIN = "Continue with the same command (without --overwrite)"


def commit_shard(paths: RunPaths, identity: str, schema: pa.Schema, header: Header, base: Commit | None, ledger: Ledger) -> None:
    """Writes the parts of a finished shard, declares it done, and removes the journal and the old parts.

    identity: digest of the run's identity. base: the commit that the journal continues. Raises OutOfRoom, before anything is written,
    where the volume has no room for the parts; RunDirError where journal and base do not hold what the ``ledger`` counted; OSError.
    """
    journal_path = paths.journal_of(header.shard)
    old = [] if base is None else list(base.files(paths))
    for part, file in old:
        check_sha256(part, file.sha256)
    results, failures = _merged(paths, header, base)
    _check_counts(journal_path, results, failures, ledger)
    results_part, errors_part = (name(header.shard, header.generation) for name in (paths.results_part, paths.errors_part))
    require_room(results_part, journal_path.stat().st_size + sum(file.bytes for _, file in old))
    declared = PartDeclaration(identity, header.shard, ledger.rows, ledger.records, ledger.errors, None)
    errors_file = write_part(errors_part, errors_schema(schema), sorted_records(failures), declared) if ledger.errors else None
    declared = replace(declared, errors_sha256=None if errors_file is None else errors_file.sha256)
    results_file = write_part(results_part, schema, sorted_records(results), declared)
    counts = ledger.records, ledger.errors
    append_commit(paths, Commit.of(header.shard, header.generation, ledger.rows, counts, results_file, errors_file))
    for file in [part for part, _ in old] + [journal_path]:
        file.unlink()
    for folder in {part.parent for part, _ in old} | {paths.journal}:
        fsync_folder(folder)


def check_sha256(part: Path, committed: str) -> None:
    """Raises RunDirError where a part has other bytes than were committed. Call it before they are parsed."""
    try:
        whole = sha256(part) == committed
    except FileNotFoundError:
        whole = False
    if not whole:
        raise RunDirError(f"{part}: is missing or damaged, and its shard builds on it. {_AGAIN}: its rows are done again.")


def base_batches(paths: RunPaths, base: Commit) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Returns the (results, errors) of a commit whose bytes have been checked."""
    results, *errors = [list(read_part(part)) for part, _ in base.files(paths)]
    return results, errors[0] if errors else []


def _merged(paths: RunPaths, header: Header, base: Commit | None) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Returns the results and errors of the shard's new parts. Errors of base that were done again are left out."""
    new = journal.read_journal(paths.journal_of(header.shard)) or Journal(header, [], [])
    if base is None:
        return new.results, new.errors
    results, errors = base_batches(paths, base)
    return results + new.results, new.errors if header.retry else errors + new.errors


def _check_counts(path: Path, results: list[pa.RecordBatch], failures: list[pa.RecordBatch], ledger: Ledger) -> None:
    read = tuple(sum(batch.num_rows for batch in batches) for batches in (results, failures))
    if read != (ledger.records, ledger.errors):
        raise RunDirError(
            f"{path}: {ledger.records} records and {ledger.errors} errors were written, {read[0]} and {read[1]} read back. "
            f"Check the disk. {_AGAIN}: what is missing is done again."
        )
    pairs = np.concatenate([np.stack(positions(batches)) for batches in (results, failures)], axis=1)
    if (np.diff(pairs[:, np.lexsort(pairs)]) == 0).all(axis=0).any():
        raise RunDirError(f"{path}: holds a row and sample twice. Remove this file. {_AGAIN}: its rows are done again.")
