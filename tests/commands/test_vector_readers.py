"""Other libraries read the vectors of a run, from its own files: rows and matrices, without a copy where they can."""

from pathlib import Path

import duckdb
import mlx_bulk
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from ..jobs.support.bench import Done
from ..jobs.support.embed_runs import TEXTS, WIDTH, embed, embedder, vectors


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    root = tmp_path_factory.mktemp("vectors")
    return embed(root, embedder(root / "model"), batch={"rows_per_shard": 2})


def test_pyarrow_gives_a_matrix_without_a_copy(done: Done) -> None:
    column = mlx_bulk.results(done.output, columns=["embedding"])["embedding"]
    parts = [part.flatten().to_numpy(zero_copy_only=True).reshape(-1, WIDTH) for part in column.chunks]
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), vectors(done))
    plain = ds.dataset(done.output / "results", format="ipc").to_table()
    assert plain.schema.field("embedding").type == pa.list_(pa.float32(), WIDTH)


def test_polars_reads_arrays(done: Done) -> None:
    frame = pl.scan_ipc(done.output / "results/*.arrow").collect()
    assert frame.schema["embedding"] == pl.Array(pl.Float32, WIDTH)
    assert np.array_equal(frame["embedding"].to_numpy(), vectors(done))
    assert frame["tokens"].to_list() == done.table["tokens"].to_pylist()


def test_duckdb_searches(done: Done, tmp_path: Path) -> None:
    texts = mlx_bulk.results(done.output)
    likest = f"array_cosine_similarity(embedding::FLOAT[{WIDTH}], (SELECT embedding FROM texts WHERE row = 2)::FLOAT[{WIDTH}])"
    with duckdb.connect(tmp_path / "search.db") as base:
        base.register("texts", texts)
        found = base.sql(f"SELECT row, {likest} AS alike FROM texts ORDER BY alike DESC").fetchall()
    expected = vectors(done) @ vectors(done)[2]
    assert found[0] == (2, pytest.approx(1.0))
    assert [row for row, _ in found] == np.argsort(-expected).tolist()
    assert len(found) == len(TEXTS)
