"""``mlx-bulk verify --rescore RUN`` for a pooling model: computes some of the vectors again, in other batches.

A sample of the rows, from shards spread evenly over the run, is read from the input as the run read it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ...runner.core.outcomes import Pooled
from ...runner.core.requests import AnyRequest, Row
from ...runner.engine.interface import one_window
from ...runner.pipeline.stored_model import CHANGED_PICTURE, PoolingRun, run_pooling_model
from ...runner.store.results import read_results
from ..kinds import KINDS
from .vector_diff import VectorComparison, stored_as

SHARDS, ROWS = 16, 512  # of the run
COLUMNS = ("embedding", "logits")


def repool_run(run: Path) -> VectorComparison:
    """Compares stored vectors of the run directory ``run`` with those that its model gives now.

    Raises RunDirError for a run without vectors, ModelError where the model is missing or changed, DataError where the input is.
    """
    with run_pooling_model(run, KINDS) as found:
        schema, rows = found.input.job.schema, _sample(found)
        column = next(name for name in COLUMNS if name in schema.names)
        loaded = found.load()
        kind, logits = stored_as(schema.field(column).type), column == "logits"
        comparison = VectorComparison(column, kind, logits, loaded.float32, found.input.layout.rows)
        changed = {row.position for row in rows if found.input.picture_changed(row)}
        again = _computed(found, loaded, [row for row in rows if row.position not in changed], column)
        for batch in read_results(found.run, ["row", column]):
            positions = batch.column("row").to_numpy()
            for row in sorted(changed.intersection(positions.tolist())):
                comparison.lost.add(CHANGED_PICTURE, row)
            for at in np.flatnonzero(np.isin(positions, list(again))):
                comparison.add(_numbers(batch.column(column)[int(at)].as_py()), _numbers(again[int(positions[at])]))
        return comparison


def _sample(found: PoolingRun) -> list[Row]:
    """Returns rows of the run, spread evenly over some of its shards, which are spread evenly over it."""
    layout = found.input.layout
    shards = np.unique(np.linspace(0, max(0, layout.shards - 1), min(SHARDS, layout.shards)).astype(int)).tolist()
    wanted, most = set[int](), -(-ROWS // max(1, len(shards)))
    for shard in shards:
        rows = layout.rows_of(shard)
        wanted |= {rows[int(at)] for at in np.linspace(0, len(rows) - 1, min(most, len(rows)))}
    return [row for row in found.input.rows(shards) if isinstance(row, Row) and row.position in wanted]


def _computed(found: PoolingRun, loaded: Any, rows: list[Row], column: str) -> dict[int, Any]:
    """Returns the column's values by the rows' positions, as the job would record them. A row that fails has none."""
    check, asked = loaded.row_check(), dict[int, tuple[Row, AnyRequest]]()
    for row in rows:
        for request in found.input.requests(row):
            if check(request) is None:
                asked[row.position] = row, request
    engine, job = found.input.job.engine(loaded.setup, None), found.input.job
    outcomes = engine.run(one_window([request for _, request in asked.values()]), lambda: False)
    return {one.row: job.record(*asked[one.row], one)[column] for one in outcomes if isinstance(one, Pooled)}


def _numbers(value: Any) -> Any:
    """Returns all numbers of a vector, or of a list of vectors, behind each other."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple, np.ndarray)):
        return np.concatenate([np.asarray(each).ravel() for each in value])
    return np.asarray(value).ravel()
