"""Tests that a pooling model reads no text beyond a sliding window that mlx-lm's model lacks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import BatchConfig, ModelConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.checks.row_limits import row_check
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import AnyRequest, PoolRequest
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.pooling_loader import load_pooling_model
from mlx_bulk.runner.pooling.spec import EmbeddingHead, PoolingSpec, TokenHead

from ...checkpoints import LLAMA, PLENTY, write_checkpoint
from ..support.pooling_models import texts_of

WINDOW = 16
GEMMA3 = {"model_type": "gemma3_text", "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}


def check_of(folder: Path, spec: PoolingSpec) -> Callable[[AnyRequest], str | None]:
    config = ModelConfig(path=str(folder))
    model = load_pooling_model(config, find_checkpoint(config), spec, PLENTY)
    return row_check(fit(model, BatchConfig(), LogprobOptions()).setup, model.checkpoint.config)


def written(folder: Path, written_as: dict[str, Any], **settings: Any) -> Path:
    path = write_checkpoint(folder, LLAMA | written_as)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | settings))
    return path


@pytest.mark.parametrize("head", [EmbeddingHead(("mean",)), TokenHead(7, 8)])
def test_a_text_beyond_a_window_that_the_model_lacks_is_refused(tmp_path: Path, head: Any):
    path = written(tmp_path / "model", {}, model_type="mistral", sliding_window=WINDOW)
    check = check_of(path, PoolingSpec(head, 64 if isinstance(head, EmbeddingHead) else 1))
    assert check(PoolRequest(0, tuple(texts_of((WINDOW, 2))))) is None
    assert check(PoolRequest(0, tuple(texts_of((2, WINDOW + 1))))) == (
        "17 tokens are more than the sliding window of 16 that config.json asks for; mlx-lm's mistral has no window, "
        "so the result would be wrong; lower max_length to 16"
    )


@pytest.mark.parametrize(
    ("written_as", "settings"),
    [
        ({}, {}),  # asks for none
        ({"model_type": "qwen2"}, {"sliding_window": WINDOW, "use_sliding_window": False}),
        (GEMMA3 | {"sliding_window": WINDOW}, {}),  # has one
    ],
)
def test_a_model_without_such_a_window_reads_any_text(tmp_path: Path, written_as: dict[str, Any], settings: dict[str, Any]):
    check = check_of(written(tmp_path / "model", written_as, **settings), PoolingSpec(EmbeddingHead(("mean",)), 64))
    assert check(PoolRequest(0, tuple(texts_of((4 * WINDOW,))))) is None
