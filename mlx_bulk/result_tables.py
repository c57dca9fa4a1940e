"""Reads the committed records of a run directory as Arrow, after checking each file against the run's commit log."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from mlx_bulk.arguments import as_strings, names_nearest
from mlx_bulk.runner.runs.run_files import stored_run
from mlx_bulk.runner.store.results import OpenShards, checked_parts, read_errors, read_finished, read_results


@names_nearest
def results(path: str | Path, columns: Sequence[str] | None = None, errors: bool = False, partial: bool = False) -> pa.Table:
    """Returns the records of the run directory ``path`` in input order: one row a completion or a scored text.

    columns: only these, in the files' order. errors: the rows that could not be done, in place of the records. partial: with the finished
    records of open shards, which can be some of a row's samples.

    Only committed files are read, and only after their checksums hold: while a run goes on, finished rows of open shards are among
    them only with ``partial``. A run without a committed shard gives a table without rows and columns. The table is a view of the
    files' memory maps.

    Raises BulkError where ``path`` is no run directory, where a committed file is missing or damaged, or has no such column.
    """
    run = Path(path)
    stored_run(run)
    if partial:
        table = _table(list(read_finished(run, OpenShards.of(run), errors)))
        return (
            table
            if columns is None
            else table.select([name for name in table.column_names if name in as_strings(columns, "columns", '["completion"]')])
        )
    read = read_errors if errors else read_results
    batches = list(read(run, None if columns is None else list(as_strings(columns, "columns", '["completion"]'))))
    return _table(batches)


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches) if batches else pa.table({})


@names_nearest
def dataset(path: str | Path, errors: bool = False, partial: bool = False) -> ds.Dataset:
    """Returns the same records as a ``pyarrow.dataset.Dataset``, which reads columns and rows when they are asked for.

    partial: with the finished records of open shards. The files' checksums are checked now. A run that goes on meanwhile can replace
    a file: then open the dataset again.

    Raises BulkError as ``results``.
    """
    run = Path(path)
    stored_run(run)
    if partial and (held := OpenShards.of(run)).journals:
        return ds.dataset(_table(list(read_finished(run, held, errors))))
    parts = [str(part) for part in checked_parts(run, errors)]
    return ds.dataset(parts, format="arrow") if parts else ds.dataset(pa.table({}))
