"""Gathers an embedding's figures for a report: lengths of vectors in bins, and for a few rows those whose vectors point the same way.

Gathered while the records stream by; vectors of the first rows alone are held. Knows no charts.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...configs.embed import EmbedConfig
from ...configs.errors import BulkError
from ...runner.core.arrays import Floats
from ...runner.core.errors import RowError
from ...runner.store.results import read_results
from ...runner.templates.prompt_templates import compile_template
from ..embed.calibration import COLUMN
from ..embed.vector_statistics import stored_dtype, vector_norms
from ..embed.vector_types import ranges_of
from ..terminal.tables import shorten
from .bins import Bins

VECTOR_COLUMNS = (COLUMN, "tokens", "truncated")
_ROWS, _BYTES = 10_000, 64 << 20  # of vectors that are held
_ASKED, _NEAREST = 10, 3
_TEXT = 160  # characters of a text


@dataclass(slots=True, frozen=True)
class Neighbours:
    """A row, and the most similar rows with their cosines, the most similar first."""

    row: int
    nearest: list[tuple[int, float]]


@dataclass(slots=True)
class VectorFigures:
    """The figures of the records so far. norms: of float vectors; dtype, dimensions: of those stored; truncated: texts that were cut."""

    dtype: str = ""
    dimensions: int = 0
    truncated: int = 0
    norms: Bins = field(default_factory=lambda: Bins(0.0, 0.01, 10_000.0))
    _held: list[Floats] = field(default_factory=list[Floats])
    _rows: list[int] = field(default_factory=list[int])

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the next records, with ``VECTOR_COLUMNS``."""
        about, vectors = batch.schema.field(COLUMN), batch.column(COLUMN)
        self.dtype, self.dimensions = stored_dtype(about), int((about.metadata or {})[b"dimensions"])
        self.truncated += batch.column("truncated").true_count
        if self.dtype.startswith("float"):
            self.norms.add(np.round(vector_norms(vectors), 6))
        most = min(_ROWS, _BYTES // (4 * self.dimensions)) - len(self._rows)
        if most > 0 and not pa.types.is_list(about.type):  # lines of a Batch file have several vectors
            self._held.append(directions(vectors.slice(0, most), about))
            self._rows += batch.column("row").slice(0, most).to_pylist()

    @property
    def compared(self) -> int:
        """How many rows are compared with each other."""
        return len(self._rows)

    def neighbours(self) -> list[Neighbours]:
        """Returns rows at equal distances in the input, and for each the most similar others."""
        if len(self._rows) < 2:
            return []
        vectors = np.concatenate(self._held)
        asked = np.unique(np.linspace(0, len(vectors) - 1, min(_ASKED, len(vectors))).astype(np.int64))
        cosines = vectors[asked] @ vectors.T
        cosines[np.arange(len(asked)), asked] = -np.inf
        found: list[Neighbours] = []
        for at, own in zip(asked.tolist(), cosines, strict=True):
            order = np.argsort(-own, kind="stable")[: min(_NEAREST, len(vectors) - 1)].tolist()
            found.append(Neighbours(self._rows[at], [(self._rows[near], float(own[near])) for near in order]))
        return found


def directions(vectors: pa.FixedSizeListArray, about: pa.Field) -> Floats:
    """Returns stored vectors of any type as float32 [N, D] of length 1: int8 by the ranges of its field, ubinary as signs."""
    stored = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), -1)
    metadata = about.metadata or {}
    if (dtype := stored_dtype(about)) == "ubinary":
        stored = 2.0 * np.unpackbits(stored, axis=1)[:, : int(metadata[b"dimensions"])] - 1.0
    elif dtype == "int8":
        least, most = ranges_of(about)
        stored = least + (stored.astype(np.float32) + 128.5) * ((most - least) / 255)
    floats: NDArray[Any] = stored.astype(np.float32)
    return floats / np.maximum(np.linalg.norm(floats, axis=1, keepdims=True), 1e-12)


def texts_of(run: Path, config: EmbedConfig, rows: set[int]) -> dict[int, str]:
    """Returns the beginnings of the texts of ``rows``; of a row whose columns are not kept its key."""
    found: dict[int, str] = {}
    for batch in read_results(run):
        if len(found) == len(rows):
            break
        for at in np.flatnonzero(np.isin(batch.column("row").to_numpy(), list(rows))).tolist():
            [record] = batch.slice(at, 1).to_pylist()
            found[record["row"]] = shorten(_text(config, record)[: 4 * _TEXT], _TEXT)
    return found


def _text(config: EmbedConfig, record: dict[str, Any]) -> str:
    columns = record.get("input")
    if columns is not None:
        try:
            return compile_template(config.prompt.text or "", "prompt.text", list(columns))(columns)
        except (BulkError, RowError):
            pass  # the columns that the template reads are not among those that are kept
    return f"key {record['key']}"
