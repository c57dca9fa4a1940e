"""Names a checkpoint whose model type nobody here compared with transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class UncomparedType:
    """Such a checkpoint, and how it is read. kind: its model type. config, dtype: as for ``open_tower``."""

    kind: str
    folder: Path
    config: dict[str, Any]
    dtype: mx.Dtype | None
