"""Tests the setup of a pooling model: what a batch may hold, which rows are too large, what a session notes."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import BatchConfig, ModelConfig
from mlx_bulk.kernels import backend
from mlx_bulk.runner.checks.engine_setup import expected_setups, fit
from mlx_bulk.runner.checks.row_limits import row_check
from mlx_bulk.runner.core.errors import OutOfRoom
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import PoolRequest
from mlx_bulk.runner.models.checkpoint import Checkpoint, find_checkpoint
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_bulk.runner.models.pooling_loader import load_pooling_model
from mlx_bulk.runner.pooling.head_network import head_network
from mlx_bulk.runner.pooling.spec import EmbeddingHead, PoolingSpec
from mlx_bulk.runner.pooling.vectors import PoolingNetwork

from ...encoder_checkpoints import BERT, tiny_bert
from ..support.encoder_calls import opened
from ..support.pooling_models import texts_of

SPEC = PoolingSpec(EmbeddingHead(("mean",), normalize=True), 32)


@pytest.fixture
def model(tmp_path: Path) -> LanguageModel:
    folder = tiny_bert(tmp_path / "bert")
    body = opened(folder)
    network = PoolingNetwork(body, head_network(SPEC, body))
    return LanguageModel(network, Checkpoint(folder, None, BERT), 320, "float32", 1000, pooling=SPEC)


def fitted(model: LanguageModel, **batch: Any) -> tuple[Any, dict[str, Any]]:
    found = fit(model, BatchConfig(**batch), LogprobOptions())
    return found.setup, found.about


def test_a_batch_keeps_to_the_memory_of_its_arrays(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "device_name", lambda: "cpu")
    limits = fitted(model)[0].limits
    assert limits.kv(1, 100) >= 100 * 4 * (3 * 32 + 48) + 4 * 2 * 100 * 100 * 4  # projections, and scores of four heads twice
    fused = replace(model, substitutes=("attention",))
    assert fitted(fused)[0].limits.kv(1, 100) < limits.kv(1, 100) - 4 * 100 * 100 * 4  # our attention keeps no scores
    lean = {name: value for name, value in BERT.items() if "size" not in name}  # transformers has its defaults
    (expected,) = expected_setups([replace(model, checkpoint=replace(model.checkpoint, config=lean))], BatchConfig(), LogprobOptions())
    assert expected.limits.token_bytes > 4 * (768 + 3072)


def test_what_the_config_says_is_taken(model: LanguageModel):
    setup, about = fitted(model, rows=7, tokens=99)
    assert (setup.limits.rows, setup.limits.tokens) == (7, 99)
    assert (setup.positions, setup.dimensions) == (128, 32)
    assert about["batch"]["rows"] == 7
    assert about["probe"]["way"] == "padded"
    assert about["probe"]["difference"] <= about["probe"]["allowed"]
    assert "any_slot" not in about["probe"]
    assert isinstance(fitted(model, deterministic=True)[1]["probe"]["any_slot"], bool)


def test_one_line_says_how_texts_share_batches(model: LanguageModel, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "mlx_bulk"):
        fitted(model, rows=7)
    assert caplog.messages == [f"bert: float32 on {backend.device_name()}, batches of up to 7 texts"]


def test_a_text_too_large_for_the_memory_is_refused_with_its_cure(model: LanguageModel):
    setup = fitted(model)[0]
    setup = replace(setup, limits=replace(setup.limits, kv_bytes=setup.limits.kv(1, 50)))
    check = row_check(setup, BERT)
    assert check(PoolRequest(0, tuple(texts_of((50, 2))))) is None
    assert check(PoolRequest(0, ())) is None
    message = check(PoolRequest(1, tuple(texts_of((2, 51, 3)))))
    assert message is not None
    assert message.startswith("51 tokens need ")
    assert message.endswith("lower max_length, or raise batch.memory")
    static = replace(setup, static=True)
    assert (
        row_check(replace(static, limits=replace(setup.limits, rows=3, kv_bytes=setup.limits.kv(3, 52))), BERT)(
            PoolRequest(1, tuple(texts_of((49,))))
        )
        is None
    )
    with pytest.raises(OutOfRoom, match=r"row 1: 49 tokens, in a batch of 3 x 52, need .*; what was finished is safe"):
        row_check(replace(static, limits=replace(setup.limits, rows=3, kv_bytes=setup.limits.kv(3, 51))), BERT)(
            PoolRequest(1, tuple(texts_of((49,))))
        )


def test_a_text_longer_than_the_table_of_positions_is_refused(model: LanguageModel):
    check = row_check(fitted(model)[0], BERT)
    assert check(PoolRequest(0, tuple(texts_of((128,))))) is None
    assert check(PoolRequest(0, tuple(texts_of((129,))))) == "129 tokens are more than the model's 128 positions; lower max_length to that"


@pytest.mark.parametrize("positions", [9, 40])
def test_a_model_of_few_positions_is_tried_with_texts_that_it_takes(tmp_path: Path, positions: int):
    folder = tiny_bert(tmp_path / "short", max_position_embeddings=positions)
    config = ModelConfig(path=str(folder))
    model = load_pooling_model(config, find_checkpoint(config), SPEC, 1 << 30)
    for deterministic in (False, True):
        setup, about = fitted(model, deterministic=deterministic)
        assert (setup.positions, about["probe"]["way"], about["probe"]["reason"]) == (positions, "padded", "")
