"""Numbers rounded to those that bfloat16 holds, as nearly all checkpoints have them. Products in tiles take such weights packed."""

from pathlib import Path
from typing import cast

import mlx.core as mx


def rounded(array: mx.array) -> mx.array:
    """The array as float32."""
    return array.astype(mx.bfloat16).astype(mx.float32)


def round_checkpoint(folder: Path) -> Path:
    """Stores a checkpoint's weights in bfloat16, in place."""
    file = str(folder / "model.safetensors")
    weights = cast("dict[str, mx.array]", mx.load(file))
    mx.save_safetensors(file, {name: array.astype(mx.bfloat16) for name, array in weights.items()}, metadata={"format": "mlx"})
    return folder
