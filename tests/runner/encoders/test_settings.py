"""What encoders read in config.json: names of today and of before, and what they refuse."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.encoders.nomic_bert import OLDER
from mlx_bulk.runner.encoders.registry import encoder_class
from mlx_bulk.runner.encoders.settings import activation

from ...encoder_checkpoints import BERT, DISTILBERT, MODERNBERT, MPNET, NOMIC, ROBERTA, tiny_modernbert, tiny_nomic
from ..support.encoder_calls import batch_states, config_of, opened, random_rows, weights_of
from ..support.encoder_truth import gelu

ROWS = random_rows([1, 25, 60])


def made(config: dict[str, Any]) -> Any:
    kind = encoder_class(config)
    assert kind is not None
    return kind(config)


def test_a_decoder_is_no_encoder_of_ours() -> None:
    assert encoder_class({"model_type": "llama"}) is None
    assert encoder_class({}) is None


def test_modernbert_reads_the_names_of_transformers_5(tmp_path: Path) -> None:
    older = tiny_modernbert(tmp_path / "older", global_rope_theta=5000.0, local_rope_theta=70.0)
    rope: dict[str, Any] = {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
    }
    kinds = [f"{kind}_attention" for kind in ("full", "sliding", "sliding", "full")]
    names = {"global_rope_theta": None, "local_rope_theta": None, "global_attn_every_n_layers": None}
    newer = tiny_modernbert(tmp_path / "newer", rope_parameters=rope, layer_types=kinds, **names)
    found, expected = (np.concatenate(batch_states(opened(folder), ROWS)) for folder in (newer, older))
    np.testing.assert_array_equal(found, expected)
    plain = np.concatenate(batch_states(opened(tiny_modernbert(tmp_path / "plain")), ROWS))
    assert np.abs(found - plain).max() > 0.05  # the thetas count


def test_nomic_reads_the_names_of_the_hubs_own_code(tmp_path: Path) -> None:
    """Sizes under GPT-2's names, as v1 was published with."""
    today = tiny_nomic(tmp_path / "today", rope_parameters={"rope_type": "default", "rope_theta": 50.0})
    config = config_of(today) | {"rope_parameters": None, "rotary_emb_base": 50}
    older = config | {old: config.get(name, config.get(old)) for name, old in OLDER.items()}
    older = {name: value for name, value in older.items() if name not in OLDER}
    kind = type(opened(today))
    encoder = kind(older)
    encoder.load_weights(list(kind.sanitize(weights_of(today)).items()), strict=True)
    found, expected = (np.concatenate(batch_states(each, ROWS)) for each in (encoder, opened(today)))
    np.testing.assert_array_equal(found, expected)
    assert kind.hidden_size(older) == 32


def test_nomic_ends_where_a_scaled_rotation_would_begin() -> None:
    kind = encoder_class(NOMIC)
    assert kind is not None
    assert kind.max_positions(NOMIC) == 128
    assert kind.max_positions(NOMIC | {"rotary_scaling_factor": 2.0}) == 64


def test_modernbert_with_biases(tmp_path: Path) -> None:
    encoder = opened(tiny_modernbert(tmp_path / "model", norm_bias=True, attention_bias=True, mlp_bias=True))
    assert all(np.isfinite(state).all() for state in batch_states(encoder, ROWS))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            BERT | {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key'; mlx-bulk computes bert only with 'absolute'",
        ),
        (ROBERTA | {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
        (BERT | {"is_decoder": True}, "is_decoder is True"),
        (BERT | {"hidden_act": "laplace"}, "the activation is 'laplace'; mlx-bulk computes encoders only with gelu, gelu_new"),
        (BERT | {"num_attention_heads": 5}, "hidden_size is 32, which is no multiple of num_attention_heads 5"),
        (DISTILBERT | {"activation": "mish"}, "the activation is 'mish'"),
        (DISTILBERT | {"n_heads": 5}, "dim is 32, which is no multiple of n_heads 5"),
        (MPNET | {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64"),
        (NOMIC | {"moe_every_n_layers": 2, "num_experts": 8}, "moe_every_n_layers is 2; mlx-bulk computes nomic_bert only with 0"),
        (NOMIC | {"activation_function": "gelu"}, "activation_function is 'gelu'"),
        (NOMIC | {"qkv_proj_bias": True}, "qkv_proj_bias is True"),
        (NOMIC | {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5"),
        (NOMIC | {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base is 512"),
        (NOMIC | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0}}, "rope_type is 'dynamic'"),
        (MODERNBERT | {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}}, "rope_type is 'yarn'"),
        (MODERNBERT | {"rope_scaling": {"type": "linear", "factor": 4.0}}, "type is 'linear'"),
        (MODERNBERT | {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        (MODERNBERT | {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "chunked_attention"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        made(config)
    assert "\n" not in str(refused.value)


def test_what_a_config_leaves_out_is_as_in_transformers() -> None:
    encoder = made({"model_type": "bert", "num_hidden_layers": 1, "vocab_size": 10, "hidden_size": None})
    assert encoder.embeddings.words.weight.shape == (10, 768)
    assert encoder.embeddings.positions.weight.shape == (512, 768)
    assert encoder.blocks[0].mlp_norm.eps == 1e-12


X = np.linspace(-6, 6, 201)
TANH = 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))
FORMULAS: dict[str, Any] = {
    "gelu": gelu(X),
    **dict.fromkeys(["gelu_new", "gelu_pytorch_tanh", "gelu_fast"], TANH),
    "relu": np.maximum(X, 0),
    **dict.fromkeys(["silu", "swish"], X / (1 + np.exp(-X))),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_are_their_formulas(name: str) -> None:
    # float32 of numbers up to 6
    np.testing.assert_allclose(np.array(activation(name)(mx.array(X.astype(np.float32)))), FORMULAS[name], rtol=0, atol=2e-6)
