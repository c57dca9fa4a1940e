"""Encoders as a run loads them: with the CPU's kernels where these serve."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.kernels import native
from mlx_bulk.runner.layers.kernel_injection import restore
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.encoder_loader import load_encoder
from mlx_bulk.runner.patched_layers.layer_patching import is_patched

from ...encoder_checkpoints import tiny_bert

ROOM = 1 << 30


@pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")
def test_an_encoder_has_the_kernels_and_says_so(tmp_path: Path):
    config = ModelConfig(path=str(tiny_bert(tmp_path / "model")))
    model = load_encoder(config, find_checkpoint(config), ROOM)
    assert model.substitutes == ("block", "gelu", "linear", "norm")
    assert is_patched(model.network)
    fast = model.network(mx.array([[5, 6, 7]]), [3])
    restore(model.network)  # as ModelPool.release does
    assert not is_patched(model.network)
    assert mx.allclose(model.network(mx.array([[5, 6, 7]]), [3]), fast, atol=1e-5)
