"""Records of many batches, as they were finished, put into the input's order: by row, then by sample, in bounded batches.

Memory does not grow with the records: what comes in are views of memory maps, and a batch is gathered at a time. What goes out
depends on the records alone, not on how they came.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.arrays import Ints

_BATCH_ROWS, _BATCH_BYTES = 1024, 16 << 20
_GATHER_ROWS = 64  # gathered at a time, so that a batch of long records overshoots its bytes by little


def positions(batches: Sequence[pa.RecordBatch]) -> tuple[Ints, Ints]:
    """The rows [N] and samples [N] of all batches; no sample (the whole row failed) is -1, and 0 where records have none."""
    return _joined(batches, "row"), _joined(batches, "sample")


def _joined(batches: Sequence[pa.RecordBatch], name: str) -> Ints:
    if not batches or name not in batches[0].schema.names:
        return np.zeros(sum(batch.num_rows for batch in batches), np.int64)
    columns = [pc.fill_null(batch.column(name), -1).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate(columns).astype(np.int64)


def sorted_records(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records of ``batches`` by row and sample, in batches of about 1,024 or 16 MB, whichever comes first."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in _pieces(batches):
        held.append(piece)
        rows += piece.num_rows
        size += pa.ipc.get_record_batch_size(piece)  # nbytes would count bitmaps that the framing left behind
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _pieces(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches' rows in order, 64 at a time."""
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
    """Rows ``place[i]`` of ``batches[source[i]]``. (Taking from one chunked table would join all its chunks each time.)"""
    grouped = np.argsort(source, kind="stable")
    pieces = [batches[number].take(pa.array(place[grouped][source[grouped] == number])) for number in np.unique(source)]
    return pa.concat_batches(pieces).take(pa.array(np.argsort(grouped, kind="stable")))
