"""Sorts records into the input's order, by row, then by sample, and yields them in bounded batches.

Memory does not grow with the records: the input is views of memory maps, and one batch is gathered at a time. The result depends only
on the records, not on the order in which they were finished.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.arrays import Ints

_BATCH_ROWS, _BATCH_BYTES = 1024, 16 << 20
_GATHER_ROWS = 64  # gathered at a time, so that a batch of long records overshoots its bytes by little


def positions(batches: Sequence[pa.RecordBatch]) -> tuple[Ints, Ints]:
    """Returns the rows [N] and samples [N] of all batches.

    A null sample (the row failed whole) becomes -1. Where records have no column for it, all samples are 0.
    """
    return _joined(batches, "row"), _joined(batches, "sample")


def _joined(batches: Sequence[pa.RecordBatch], name: str) -> Ints:
    if not batches or name not in batches[0].schema.names:
        return np.zeros(sum(batch.num_rows for batch in batches), np.int64)
    columns = [batch.column(name) for batch in batches]
    whole = [pc.fill_null(column, -1) if column.null_count else column for column in columns]
    return np.concatenate([column.to_numpy() for column in whole]).astype(np.int64)


def sorted_records(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the records of ``batches`` by row and sample, in batches of about 1,024 records or 16 MB, whichever comes first."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in _pieces(batches):
        held.append(piece)
        rows += piece.num_rows
        size += pa.ipc.get_record_batch_size(piece)  # nbytes would count bitmaps that framing removes
        del piece
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined_batches(held)
            rows = size = 0
    if held:
        yield _joined_batches(held)


def _joined_batches(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns the batches as one, and empties the list: a caller that writes the one needs no memory for the others."""
    joined = pa.concat_batches(held)
    held.clear()
    return joined


def _pieces(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches' rows in order, 64 at a time."""
    rows, samples = positions(batches)
    order = np.lexsort((samples, rows))
    lengths = np.array([batch.num_rows for batch in batches], np.int64)
    starts = np.cumsum(lengths) - lengths
    source = np.repeat(np.arange(len(batches)), lengths)[order]
    place = order - starts[source]
    for start in range(0, len(order), _GATHER_ROWS):
        window = slice(start, start + _GATHER_ROWS)
        yield _gather(batches, source[window], place[window])


def _gather(batches: Sequence[pa.RecordBatch], source: Ints, place: Ints) -> pa.RecordBatch:
    """Gathers row ``place[i]`` of ``batches[source[i]]`` for each i. (Taking from one chunked table joins all its chunks each time.)"""
    grouped = np.argsort(source, kind="stable")
    pieces = [batches[number].take(pa.array(place[grouped][source[grouped] == number])) for number in np.unique(source)]
    return pa.concat_batches(pieces).take(pa.array(np.argsort(grouped, kind="stable")))
