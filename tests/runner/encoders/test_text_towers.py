"""Text encoders of CLIP and SigLIP against transformers in float32 on the CPU, where each row runs alone, and their CPU kernels."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.encoders.cpu_blocks import substitute_blocks
from mlx_bulk.runner.layers.kernel_injection import restore

from ...two_tower_checkpoints import TEXT, Theirs, write_two_towers
from ..support.encoder_calls import opened
from ..support.kernel_models import needed

NEAR = 2e-5  # of numbers up to 10
EOS = 24
ROWS = [[2, 7, 9, EOS], [2, EOS, 5, 6, EOS], [2, 30, 8, EOS, 12, 11, 10], [2, *range(4, 17), 40, EOS], [2, 7, 8, 9, EOS, 59]]


def batch(rows: list[list[int]], pad: int) -> tuple[mx.array, list[int]]:
    width = max(map(len, rows))
    return mx.array([[*row, *[pad] * (width - len(row))] for row in rows], mx.int32), [len(row) for row in rows]


@pytest.mark.oracle
@pytest.mark.parametrize(("kind", "eos"), [("clip", EOS), ("clip", 2), ("siglip", EOS)])
def test_vectors_are_those_of_transformers(tmp_path: Path, kind: str, eos: int) -> None:
    """The first EOS is read, or the largest id where the config says 2, as older files do; pads of any id count for nothing."""
    folder = write_two_towers(tmp_path / "model", kind, eos_token_id=eos)
    encoder, theirs = opened(folder), Theirs(folder)
    expected = np.stack([theirs.of_ids(row) for row in ROWS])
    for pad in (0, EOS, 59):
        found = np.array(encoder(*batch(ROWS, pad)))[:, 0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR)


def test_the_older_settings_of_a_tower_count_more(tmp_path: Path) -> None:
    folder = write_two_towers(tmp_path / "model", "clip")
    encoder = type(opened(folder))
    config: dict[str, Any] = {"model_type": "clip", "text_config": TEXT, "text_config_dict": {"hidden_size": 64}}
    assert (encoder.settings(config)["hidden_size"], encoder.settings(config)["vocab_size"]) == (64, 49408)


@needed
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_cpus_kernels_give_the_same_vectors(tmp_path: Path, kind: str) -> None:
    encoder = opened(write_two_towers(tmp_path / "model", kind))
    before = np.array(encoder(*batch(ROWS, 0)))
    assert "block" in substitute_blocks(encoder, TEXT["vocab_size"], TEXT["max_position_embeddings"])
    np.testing.assert_allclose(np.array(encoder(*batch(ROWS, 0))), before, rtol=0, atol=NEAR)
    restore(encoder)
