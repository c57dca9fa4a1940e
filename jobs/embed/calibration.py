"""Reads the ranges of int8 vectors: the smallest and largest number in each place among vectors that were computed before.

A run, its exported Parquet file or a NumPy file holds these. Ranges never come from the rows of the run itself: its shards, its order and
its resumes would change them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...configs.errors import BulkError, ConfigError
from ...runner.core.arrays import Floats
from ...runner.store.results import read_results
from ..terminal.tables import count_text
from .vector_types import Ranges

COLUMN = "embedding"
_KEY = "embed.calibration"
_EXPECTED = "a run directory of job: embed, a .parquet file with a column embedding, or a .npy file [N, D], all of float32 or float16"


def read_ranges(path: str, dimensions: int) -> Ranges:
    """Returns the ranges [2, D] of the vectors at ``path``. Raises ConfigError where there are none of ``dimensions`` numbers."""
    least, most, rows = np.full(dimensions, np.inf, np.float32), np.full(dimensions, -np.inf, np.float32), 0
    for vectors in _vectors(path):
        if vectors.shape[1] != dimensions:
            found = f"vectors of {vectors.shape[1]} numbers; expected {dimensions}, as this run's have"
            raise ConfigError(f"{_KEY}: {path} holds {found}; calibrate with the same model and embed.dimensions")
        if not np.isfinite(vectors).all():
            raise ConfigError(f"{_KEY}: {path} holds NaN or infinity; expected finite numbers")
        if len(vectors):
            least, most, rows = np.minimum(least, vectors.min(axis=0)), np.maximum(most, vectors.max(axis=0)), rows + len(vectors)
    if rows < 2:
        raise ConfigError(f"{_KEY}: {path} holds {count_text(rows, 'vector')}; expected at least 2, better some hundred")
    return np.stack([least, most])


def _vectors(path: str) -> Iterator[Floats]:
    place = Path(path).expanduser()
    if not place.exists():
        raise ConfigError(f"{_KEY}: {path} is not there; expected {_EXPECTED}")
    try:
        if place.is_dir() and not (place / "run.json").is_file():
            raise ConfigError(f"{_KEY}: {path} is a folder without run.json; expected {_EXPECTED}")
        if place.is_dir():
            yield from (_column(path, batch.schema, batch.column) for batch in read_results(place))
        elif place.suffix == ".parquet":
            with pq.ParquetFile(place) as file:
                yield from (_column(path, batch.schema, batch.column) for batch in file.iter_batches())
        elif place.suffix == ".npy":
            yield _array(path, np.load(place, allow_pickle=False))
        else:
            raise ConfigError(f"{_KEY}: {path} is of no known kind; expected {_EXPECTED}")
    except (OSError, ValueError, pa.ArrowException, BulkError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{_KEY}: {path} cannot be read: {error}; expected {_EXPECTED}") from error


def _array(path: str, array: Any) -> Floats:
    if array.ndim != 2 or array.dtype not in (np.float32, np.float16):
        raise ConfigError(f"{_KEY}: {path} holds {array.dtype} of shape {list(array.shape)}; expected {_EXPECTED}")
    return array.astype(np.float32)


def _column(path: str, schema: pa.Schema, column: Any) -> Floats:
    """Returns a batch's vectors [n, D]: ``column`` gives a column by its name."""
    type_ = schema.field(COLUMN).type if COLUMN in schema.names else None
    listed = type_ is not None and (pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_) or pa.types.is_large_list(type_))
    if type_ is None or not listed or type_.value_type not in (pa.float32(), pa.float16()):
        found = "no column embedding" if type_ is None else f"a column embedding of {type_}"
        raise ConfigError(f"{_KEY}: {path} holds {found}; expected {_EXPECTED}")
    vectors = column(COLUMN).drop_null()
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.astype(np.float32).reshape(len(vectors), -1) if len(vectors) else np.zeros((0, 0), np.float32)
