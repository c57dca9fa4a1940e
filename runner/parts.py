"""A shard's part: made from its journal in input order, in bounded batches; read back as a memory map.

The bytes of a part depend on its records alone, not on the order in which they were finished or how they were framed.
Memory does not grow with the shard: journal and parts are memory maps, and a batch is gathered at a time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from . import journal
from .commits import Commit, append_commit, read_commits
from .durable import fsync_folder, replacing, sha256
from .errors import RunDirError
from .paths import RunPaths

ERRORS_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("key", pa.string()),
        ("sample", pa.int32()),
        ("stage", pa.string()),
        ("error", pa.string()),
        ("message", pa.string()),
        ("input", pa.large_string()),
    ]
)

_BATCH_ROWS, _BATCH_BYTES = 1024, 16 << 20
_GATHER_ROWS = 64  # gathered at a time, so that a batch of long records overshoots its bytes by little


def commit_shard(paths: RunPaths, schema: pa.Schema, shard: int, generation: int, rows: int, records: int, errors: int) -> None:
    """Turns the journal of a finished shard of ``rows`` input rows into its parts, and declares it done.

    The order is the promise: parts whole and durable, then the line, then the journal goes. Killed between any two steps,
    the journal is still there, or the line is. Raises OSError, and RunDirError where the journal does not hold the
    ``records`` and ``errors`` that were appended to it.
    """
    journal_path, results_part, errors_part = paths.journal_of(shard), paths.results_part(shard), paths.errors_part(shard)
    results, failures = journal.read(journal_path)
    found = sum(batch.num_rows for batch in results), sum(batch.num_rows for batch in failures)
    if found != (records, errors):
        raise RunDirError(
            f"{journal_path}: {records} records and {errors} errors were written, {found[0]} and {found[1]} read back. "
            "Check the disk, then run the same command again: what is missing is done again."
        )
    _write_part(results_part, schema, results)
    if errors:
        _write_part(errors_part, ERRORS_SCHEMA, failures)
    commit = Commit(
        shard=shard,
        generation=generation,
        rows=rows,
        records=records,
        errors=errors,
        results_sha256=sha256(results_part),
        results_bytes=results_part.stat().st_size,
        errors_sha256=sha256(errors_part) if errors else None,
        errors_bytes=errors_part.stat().st_size if errors else 0,
    )
    append_commit(paths, commit)
    journal_path.unlink()
    fsync_folder(paths.journal)


def _write_part(path: Path, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with replacing(path) as file, pa.ipc.new_file(file, schema) as sink:
        for batch in _bounded(_in_order(batches)):
            sink.write_batch(batch)


def _bounded(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins the pieces to batches of about 1,024 rows or 16 MB, whichever comes first."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        held.append(piece)
        rows += piece.num_rows
        size += pa.ipc.get_record_batch_size(piece)  # nbytes would count bitmaps that the framing left behind
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _in_order(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches' rows by row and sample, 64 at a time."""
    if not batches:
        return
    order = np.lexsort((_joined(batches, "sample"), _joined(batches, "row")))
    lengths = np.array([batch.num_rows for batch in batches])
    source = np.repeat(np.arange(len(batches)), lengths)[order]
    place = np.concatenate([np.arange(length) for length in lengths])[order]
    for start in range(0, len(order), _GATHER_ROWS):
        window = slice(start, start + _GATHER_ROWS)
        yield _gather(batches, source[window], place[window])


def _joined(batches: Sequence[pa.RecordBatch], name: str) -> NDArray[np.int64]:
    """One integer column of all batches; a null (no one sample) sorts first, and so do records without samples."""
    if name not in batches[0].schema.names:
        return np.zeros(sum(batch.num_rows for batch in batches), dtype=np.int64)
    return np.concatenate([pc.fill_null(batch.column(name), -1).to_numpy(zero_copy_only=False) for batch in batches])


def _gather(batches: Sequence[pa.RecordBatch], source: NDArray[np.int64], place: NDArray[np.int64]) -> pa.RecordBatch:
    """Rows ``place[i]`` of ``batches[source[i]]``. (Taking from one chunked table would join all its chunks each time.)"""
    grouped = np.argsort(source, kind="stable")
    pieces = [batches[number].take(pa.array(place[grouped][source[grouped] == number])) for number in np.unique(source)]
    return pa.concat_batches(pieces).take(pa.array(np.argsort(grouped, kind="stable")))


def read_results(run: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The committed results of the run directory ``run``, in input order, as views of the parts' memory maps.

    ``columns``: only these, in the schema's order. Takes no lock; what is committed while it reads may be left out.
    Raises RunDirError where a committed part is missing or has no such column.
    """
    paths = RunPaths(run)
    for shard in sorted(read_commits(paths).commits):
        yield from _batches(paths.results_part(shard), columns)


def read_errors(run: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The committed failures of the run directory ``run``, by ERRORS_SCHEMA; else as ``read_results``."""
    paths = RunPaths(run)
    for shard, commit in sorted(read_commits(paths).commits.items()):
        if commit.errors:
            yield from _batches(paths.errors_part(shard), columns)


def _batches(part: Path, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    try:
        with pa.memory_map(str(part)) as file:
            schema = pa.ipc.open_file(file).schema
            if missing := set(columns or ()) - set(schema.names):
                raise RunDirError(f"{part}: no column {sorted(missing)}; it has {', '.join(schema.names)}")
            fields = None if columns is None else [index for index, name in enumerate(schema.names) if name in columns]
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
    except FileNotFoundError as error:
        raise RunDirError(f"{part}: commits.jsonl says it is there, but it is not. Run the same command again to redo it.") from error
