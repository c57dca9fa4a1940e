"""The statistics of an embedding job: counts, tokens, and the lengths of its vectors. They follow from the records alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from ...runner.store.results import read_results
from ..statistics.exact_sums import ExactSums
from ..terminal.tables import align_columns, count_text, figure
from .calibration import COLUMN

_pc: Any = pyarrow.compute  # its functions come to be when it is imported: a type checker sees none
TYPES = {
    **dict.fromkeys(("of", "dtype"), pa.string()),
    **dict.fromkeys(("rows", "tokens", "most_tokens", "truncated", "dimensions"), pa.int64()),
}


def embed_statistics(run: Path) -> pa.Table:
    """Returns a table of one row. Tokens and cuts are those of rows: a line of a Batch file may have several texts.

    Norms are Euclidean lengths of the stored vectors; null for int8 and ubinary, which have none.
    """
    counts = dict.fromkeys(("rows", "tokens", "truncated"), 0)
    most = dimensions = 0
    dtype: str | None = None
    vectors, least, longest, total = 0, np.inf, -np.inf, ExactSums()
    for batch in read_results(run):
        field = batch.schema.field(COLUMN)
        dtype, dimensions = stored_dtype(field), int((field.metadata or {})[b"dimensions"])
        tokens = batch.column("tokens").to_numpy()
        counts["rows"] += batch.num_rows
        counts["tokens"] += int(tokens.sum())
        counts["truncated"] += batch.column("truncated").true_count
        most = max(most, int(tokens.max(initial=0)))
        if dtype in ("float32", "float16"):
            norms = vector_norms(batch.column(COLUMN))
            vectors += len(norms)
            total.add(np.zeros(len(norms), np.int64), norms)
            least, longest = min(least, norms.min(initial=np.inf)), max(longest, norms.max(initial=-np.inf))
    row: dict[str, Any] = {"of": "all", **counts, "most_tokens": most or None, "dimensions": dimensions or None, "dtype": dtype}
    known = longest >= least
    row |= {"norm_mean": total.total(None) / vectors if known else None}
    row |= {"norm_min": least if known else None, "norm_max": longest if known else None}
    return pa.table({name: pa.array([value], TYPES.get(name, pa.float64())) for name, value in row.items()})


def stored_dtype(field: pa.Field) -> str:
    """Returns what ``embed.dtype`` was, by the field of the vectors."""
    number = field.type.value_type
    number = number.value_type if pa.types.is_list(number) else number  # a line of a Batch file has several vectors
    return {pa.float32(): "float32", pa.float16(): "float16", pa.int8(): "int8"}.get(number, "ubinary")


def vector_norms(vectors: pa.Array) -> NDArray[np.float64]:
    """Returns the Euclidean lengths [N] of vectors of floats, one a row; of rows with several vectors, those of all."""
    if pa.types.is_list(vectors.type):
        vectors = vectors.flatten()
    sizes = _pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    squares = np.square(vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float64))
    return np.sqrt(np.add.reduceat(squares, np.cumsum(sizes) - sizes)) if len(sizes) else np.zeros(0)


def embed_closing(statistics: pa.Table) -> str:
    """Returns the statistics as aligned text, with a note on texts that were cut."""
    [row] = statistics.slice(0, 1).to_pylist()
    if not row["rows"]:
        return ""
    lines = align_columns(list(zip(*vector_figures(row), strict=True)), 0)
    if cut := row["truncated"]:
        counts = f"{cut:,} of {count_text(row['rows'], 'row')} {'has' if cut == 1 else 'have'}"
        lines.append(f"{counts} a text that was cut to the model's longest (column truncated; embed.too_long: error sets them aside)")
    return "\n".join(lines)


def vector_figures(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the figures of a row of statistics, each with its heading; none where there are no records."""
    if not row["rows"]:
        return []
    cells = {"rows": row["rows"], "tokens": row["tokens"], "mean tokens": row["tokens"] / row["rows"], "most": row["most_tokens"]}
    shown = [(name, figure(value)) for name, value in cells.items()]
    shown += [("vector", f"{row['dimensions']} × {row['dtype']}")]
    if row["norm_mean"] is not None:
        shown += [(name, figure(round(row[f"norm_{name.removesuffix(' norm')}"], 6))) for name in ("mean norm", "min norm", "max norm")]
    return shown
