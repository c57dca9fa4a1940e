"""Tests the types of stored vectors, and the ranges of int8, against plain formulas; against sentence-transformers where that is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.jobs.embed.calibration import read_ranges
from mlx_bulk.jobs.embed.vector_types import float16_vectors, int8_vectors, stored_type, storing, ubinary_vectors
from mlx_bulk.runner.core.errors import RowError

VECTORS = np.random.default_rng(0).normal(size=(200, 19)).astype(np.float32)
RANGES = np.stack([VECTORS[:50].min(axis=0), VECTORS[:50].max(axis=0)])
RANGES[1, 3] = RANGES[0, 3]  # a place in which all calibration vectors are alike


def test_int8_counts_steps_of_equal_width_and_clips():
    found = int8_vectors(VECTORS, RANGES)
    for row, place in np.ndindex(20, 19):
        low, high = (float(bound) for bound in RANGES[:, place])
        step = (high - low) / 255 or 1.0
        exact = (float(VECTORS[row, place]) - low) / step
        if abs(exact - round(exact)) > 1e-3:  # float32 may round a number on the border of two steps to either side
            assert found[row, place] == min(max(int(np.floor(exact)), 0), 255) - 128
    assert found.min() == -128
    assert found.max() == 127


def test_ubinary_packs_signs_from_the_highest_bit_on():
    vector = np.array([[1, -1, 0, 2, 1, 1, -3, 1, 5, -0.0]], np.float32)
    assert ubinary_vectors(vector).tolist() == [[0b10011101, 0b10000000]]
    assert stored_type("ubinary", 10) == pa.list_(pa.uint8(), 2)


def test_a_number_beyond_float16_is_an_error_of_its_row():
    assert float16_vectors(np.array([[65504.0, 1e-9]], np.float32)).tolist() == [[65504.0, 0.0]]
    with pytest.raises(RowError, match="the vector holds 70000, and float16 ends at 65,504"):
        float16_vectors(np.array([[1.0, -70000.0]], np.float32))


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["int8", "ubinary"])
def test_bits_are_those_of_sentence_transformers(dtype: str):
    quantization: Any = pytest.importorskip("sentence_transformers.util.quantization")
    expected = quantization.quantize_embeddings(VECTORS, precision=dtype, ranges=RANGES if dtype == "int8" else None)
    found = storing(dtype, RANGES)(VECTORS)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_ranges_come_from_numpy_and_parquet_files(tmp_path: Path):
    np.save(tmp_path / "v.npy", VECTORS)
    np.save(tmp_path / "h.npy", VECTORS.astype(np.float16))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 19)
    pq.write_table(pa.table({"embedding": fixed}), tmp_path / "fixed.parquet", row_group_size=60)
    pq.write_table(pa.table({"embedding": fixed.cast(pa.list_(pa.float32()))}), tmp_path / "lists.parquet")
    expected = np.stack([VECTORS.min(axis=0), VECTORS.max(axis=0)])
    for name in ("v.npy", "fixed.parquet", "lists.parquet"):
        assert np.array_equal(read_ranges(str(tmp_path / name), 19), expected), name
    assert np.array_equal(read_ranges(str(tmp_path / "h.npy"), 19), expected.astype(np.float16).astype(np.float32))


def test_what_gives_no_ranges_is_named(tmp_path: Path):
    np.save(tmp_path / "one.npy", VECTORS[:1])
    np.save(tmp_path / "whole.npy", np.ones((4, 19), np.int64))
    np.save(tmp_path / "nan.npy", np.full((4, 19), np.nan, np.float32))
    np.save(tmp_path / "v.npy", VECTORS)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "v.csv").write_text("1,2")
    (tmp_path / "folder").mkdir()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "texts.parquet")
    for name, found in {
        "one.npy": "holds 1 vector; expected at least 2",
        "whole.npy": r"holds int64 of shape \[4, 19\]; expected",
        "nan.npy": "holds NaN or infinity",
        "text.npy": "cannot be read",
        "v.csv": "is of no known kind",
        "folder": "is a folder without run.json",
        "texts.parquet": "holds no column embedding",
        "nothing.npy": "is not there",
    }.items():
        with pytest.raises(ConfigError, match=rf"embed\.calibration: .*{name} {found}"):
            read_ranges(str(tmp_path / name), 19)
    with pytest.raises(ConfigError, match=r"v\.npy holds vectors of 19 numbers; expected 8, as this run's have"):
        read_ranges(str(tmp_path / "v.npy"), 8)
