"""Tests the figures of embeddings in a report: vectors of all types as directions, and the nearest neighbours."""

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.jobs.embed.vector_types import ranges_text, stored_type, storing
from mlx_bulk.jobs.report_data import vector_figures
from mlx_bulk.jobs.report_data.vector_figures import VectorFigures, directions

VECTORS = np.random.default_rng(0).normal(size=(60, 20)).astype(np.float32)
VECTORS[50:] = 3 * VECTORS[:10] + 0.01  # each of the first ten rows has one that points its way
RANGES = np.stack([VECTORS.min(axis=0), VECTORS.max(axis=0)])


def batch(dtype: str, at: slice = slice(None)) -> pa.RecordBatch:
    metadata: dict[str | bytes, str | bytes] = {"dimensions": "20", "ranges": ranges_text(RANGES)}
    field = pa.field("embedding", stored_type(dtype, 20), metadata=metadata)
    stored = storing(dtype, RANGES)(VECTORS[at])
    column = pa.FixedSizeListArray.from_arrays(pa.array(stored.ravel()), type=field.type)
    rows = pa.array(np.arange(60)[at])
    schema = pa.schema([("row", pa.int64()), field, ("tokens", pa.int32()), ("truncated", pa.bool_())])
    return pa.RecordBatch.from_arrays([rows, column, pa.array([3] * len(rows), pa.int32()), pa.array([False] * len(rows))], schema=schema)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.999999), ("float16", 0.999999), ("int8", 0.999), ("ubinary", 0.5)])
def test_stored_vectors_point_where_they_did(dtype: str, least: float) -> None:
    found, unit = directions(batch(dtype).column("embedding"), batch(dtype).schema.field("embedding")), VECTORS.astype(np.float64)
    assert (found * unit / np.linalg.norm(unit, axis=1, keepdims=True)).sum(axis=1).min() > least


def test_the_most_similar_rows_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_figures, "_ASKED", 60)
    figures = VectorFigures()
    for at in (slice(0, 25), slice(25, 60)):
        figures.add(batch("float32", at))
    found = {each.row: each.nearest for each in figures.neighbours()}
    unit = (VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)).astype(np.float64)
    for row, nearest in found.items():
        cosines = unit @ unit[row]
        cosines[row] = -2
        assert [near for near, _ in nearest] == np.argsort(-cosines)[:3].tolist()
        np.testing.assert_allclose([cosine for _, cosine in nearest], np.sort(cosines)[::-1][:3], atol=1e-6)
    assert [found[row][0][0] for row in range(10)] == list(range(50, 60))


def test_few_vectors_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_figures, "_BYTES", 30 * 20 * 4)
    figures = VectorFigures()
    for at in (slice(0, 25), slice(25, 60)):
        figures.add(batch("float16", at))
    assert figures.compared == 30
    assert figures.norms.count == 60
