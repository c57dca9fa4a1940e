"""The types in which vectors are stored: float32 as computed, float16, and sentence-transformers' int8 and ubinary.

The formulas are those of its ``quantize_embeddings`` and give the same bits. Knows no texts and no files.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...runner.core.arrays import Floats
from ...runner.core.errors import RowError

Ranges = Floats  # [2, D]: the smallest and the largest number in each place
Stored = Callable[[Floats], NDArray[Any]]


def stored_type(dtype: str, dimensions: int) -> pa.DataType:
    """Returns the Arrow type of a stored vector of ``dimensions`` numbers."""
    if dtype == "ubinary":
        return pa.list_(pa.uint8(), -(-dimensions // 8))
    return pa.list_({"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}[dtype], dimensions)


def storing(dtype: str, ranges: Ranges | None = None) -> Stored:
    """Returns the function from vectors [n, D] float32 to the array that is stored; int8 needs ``ranges``."""
    if dtype == "int8":
        assert ranges is not None
        return lambda vectors: int8_vectors(vectors, ranges)
    return {"float32": lambda vectors: vectors, "float16": float16_vectors, "ubinary": ubinary_vectors}[dtype]


def float16_vectors(vectors: Floats) -> NDArray[np.float16]:
    """Returns vectors as float16. Raises RowError for a number beyond its largest, 65,504."""
    with np.errstate(over="ignore"):
        halves = vectors.astype(np.float16)
    if not np.isfinite(halves).all():
        largest = float(np.abs(vectors).max())
        cure = "set embed.normalize to true, or embed.dtype to float32"
        raise RowError("store", f"the vector holds {largest:.6g}, and float16 ends at 65,504; {cure}", "Overflow")
    return halves


def ranges_text(ranges: Ranges) -> str:
    """Returns ranges as JSON, [smallest, largest], which read back as the same float32. Readers of Arrow want metadata to be text."""
    return json.dumps([[float(str(number)) for number in bounds] for bounds in ranges])


def ranges_of(field: pa.Field) -> Ranges:
    """Returns the ranges that the field of int8 vectors says."""
    return np.array(json.loads((field.metadata or {})[b"ranges"]), np.float32)


def int8_vectors(vectors: Floats, ranges: Ranges) -> NDArray[np.int8]:
    """Returns vectors [n, D] as int8: 256 steps of equal width from ``ranges[0]`` to ``ranges[1]``; what lies outside is clipped."""
    starts = ranges[0]
    steps = (ranges[1] - starts) / 255
    steps = np.where(steps == 0, 1, steps)
    return (np.clip(np.floor((vectors - starts) / steps), 0, 255) - 128).astype(np.int8)


def ubinary_vectors(vectors: Floats) -> NDArray[np.uint8]:
    """Returns the signs of vectors [n, D], 8 to a byte [n, D / 8]: 1 where a number is above 0, the first in the highest bit."""
    return np.packbits(vectors > 0, axis=-1)
