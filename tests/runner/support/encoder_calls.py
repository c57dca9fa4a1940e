"""Opens an encoder from a folder of tests/encoder_checkpoints.py, and runs rows on it in one padded batch."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.runner.encoders.encoder import Encoder
from mlx_bulk.runner.encoders.registry import encoder_class
from numpy.typing import NDArray

Rows = list[list[int]]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def weights_of(folder: Path) -> dict[str, mx.array]:
    loaded: Any = mx.load(str(folder / "model.safetensors"))
    return loaded


def opened(folder: Path) -> Encoder:
    kind = encoder_class(config_of(folder))
    assert kind is not None
    encoder = kind(config_of(folder))
    encoder.load_weights(list(kind.sanitize(weights_of(folder)).items()), strict=True)
    return encoder


def random_rows(lengths: list[int], vocabulary: int = 320, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocabulary, length).tolist() for length in lengths]


def batch_states(encoder: Encoder, rows: Rows, types: Rows | None = None, pad: int = 0, extra: int = 0) -> list[NDArray[np.float32]]:
    """States [T, H] of each row, from one batch that is padded on the right with ``pad`` (and with ``extra`` columns of it)."""
    width = max(map(len, rows)) + extra

    def padded(lists: Rows, fill: int) -> mx.array:
        return mx.array([[*row, *[fill] * (width - len(row))] for row in lists], mx.int32)

    states = np.array(encoder(padded(rows, pad), [len(row) for row in rows], None if types is None else padded(types, 1)))
    assert np.isfinite(states).all()
    return [state[: len(row)] for state, row in zip(states, rows, strict=True)]
