"""Names in checkpoints: prefixes, older names, buffers, heads of several kinds."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.runner.encoders.encoder import Encoder
from mlx_bulk.runner.encoders.registry import encoder_class

from ...encoder_checkpoints import (
    TINY_ENCODERS,
    tiny_bert,
    tiny_distilbert,
    tiny_electra,
    tiny_modernbert,
    tiny_mpnet,
    tiny_nomic,
    tiny_roberta,
)
from ..support.encoder_calls import batch_states, config_of, random_rows, weights_of

Weights = dict[str, mx.array]
NOTHING = mx.zeros((1,))


def kind_of(folder: Path) -> type[Encoder]:
    kind = encoder_class(config_of(folder))
    assert kind is not None
    return kind


def assert_same(found: Weights, expected: Weights) -> None:
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(np.array(found[name]), np.array(array))


@pytest.mark.parametrize("family", TINY_ENCODERS)
def test_a_body_beside_a_head_is_the_body_alone(tmp_path: Path, family: str) -> None:
    folder = TINY_ENCODERS[family](tmp_path / "classifier", labels=3)
    kind, weights = kind_of(folder), weights_of(folder)
    prefix = "model." if family == "modernbert" else f"{family}."
    bare = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
    assert_same(kind.sanitize(weights), kind.sanitize(bare))
    assert all(
        name.split(".")[0] in ("embeddings", "blocks", "final_norm", "distance_bias", "projection") for name in kind.sanitize(weights)
    )


@pytest.mark.parametrize(
    ("tiny", "heads"),
    [
        (tiny_bert, ["classifier.bias", "classifier.weight", "pooler.dense.bias", "pooler.dense.weight"]),
        (tiny_roberta, [f"classifier.{part}.{end}" for part in ("dense", "out_proj") for end in ("bias", "weight")]),
        (tiny_electra, [f"classifier.{part}.{end}" for part in ("dense", "out_proj") for end in ("bias", "weight")]),
        (tiny_mpnet, [f"classifier.{part}.{end}" for part in ("dense", "out_proj") for end in ("bias", "weight")]),
        (tiny_distilbert, [f"{part}.{end}" for part in ("classifier", "pre_classifier") for end in ("bias", "weight")]),
        (tiny_nomic, ["classifier.bias", "classifier.weight", "pooler.dense.bias", "pooler.dense.weight"]),
        (tiny_modernbert, ["classifier.bias", "classifier.weight", "head.dense.weight", "head.norm.weight"]),
    ],
)
def test_heads_are_given_apart_and_unchanged(tmp_path: Path, tiny: Callable[..., Path], heads: list[str]) -> None:
    folder = tiny(tmp_path / "classifier", labels=3)
    weights, found = weights_of(folder), kind_of(folder).head_weights(weights_of(folder))
    assert sorted(found) == heads
    family = config_of(folder)["model_type"]
    assert_same(found, {name: weights[name if name in weights else f"{family}.{name}"] for name in heads})


@pytest.mark.parametrize(("family", "prefix"), [("bert", "model."), ("nomic_bert", "bert."), ("roberta", "model.")])
def test_prefixes_of_other_writers(tmp_path: Path, family: str, prefix: str) -> None:
    folder = TINY_ENCODERS[family](tmp_path / "model")
    kind, weights = kind_of(folder), weights_of(folder)
    assert_same(kind.sanitize({prefix + name: array for name, array in weights.items()}), kind.sanitize(weights))


def test_heads_of_language_models_and_buffers_are_left_out(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    kind, weights = kind_of(folder), weights_of(folder)
    language = ["cls.predictions.bias", "cls.predictions.decoder.weight", "cls.seq_relationship.weight", "lm_head.dense.weight"]
    buffers = ["embeddings.position_ids", "bert.embeddings.token_type_ids", "rotary_emb.inv_freq"]
    more = weights | dict.fromkeys([*language, *buffers], NOTHING)
    assert_same(kind.sanitize(more), kind.sanitize(weights))
    assert_same(kind.head_weights(more), kind.head_weights(weights))


def test_norms_of_older_files(tmp_path: Path) -> None:
    """BERT's first checkpoints call a LayerNorm's weight gamma and its bias beta."""
    folder = tiny_bert(tmp_path / "model")
    kind, weights = kind_of(folder), weights_of(folder)
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in weights.items()
    }
    assert sum(name.endswith("gamma") for name in older) == 5
    assert_same(kind.sanitize(older), kind.sanitize(weights))


def test_nomics_names_in_transformers(tmp_path: Path) -> None:
    """The three products of attention in one, or one by one; a prefix of its own."""
    folder = tiny_nomic(tmp_path / "model")
    kind, weights = kind_of(folder), weights_of(folder)
    names = {
        "emb_ln": "embeddings.LayerNorm",
        "encoder.layers": "layers",
        "attn.out_proj": "self_attn.o_proj",
        "mlp.fc11": "mlp.up_proj",
        "mlp.fc12": "mlp.gate_proj",
        "mlp.fc2": "mlp.down_proj",
        "norm1": "post_attention_layernorm",
        "norm2": "post_mlp_layernorm",
    }
    newer: Weights = {}
    for name, array in weights.items():
        for old, new in names.items():
            name = name.replace(old, new)  # noqa: PLW2901
        if "attn.Wqkv" in name:
            parts = zip("qkv", mx.split(array, 3), strict=True)
            newer |= {f"nomic_bert.{name.replace('attn.Wqkv', f'self_attn.{part}_proj')}": third for part, third in parts}
        else:
            newer[f"nomic_bert.{name}"] = array
    assert_same(kind.sanitize(newer), kind.sanitize(weights))


@pytest.mark.parametrize("family", TINY_ENCODERS)
def test_quantized_weights_of_mlx_conversions(tmp_path: Path, family: str) -> None:
    """A matrix becomes three arrays, also where several products are one of ours."""
    folder = TINY_ENCODERS[family](tmp_path / "model", vocab_size=64)
    kind, weights = kind_of(folder), weights_of(folder)
    quantized: Weights = {}
    rounded: Weights = {}
    for name, array in weights.items():
        if array.ndim == 1 or array.shape[-1] % 32:
            quantized[name] = rounded[name] = array
            continue
        parts = mx.quantize(array, group_size=32, bits=8)
        quantized |= {name.removesuffix("weight") + end: part for end, part in zip(("weight", "scales", "biases"), parts, strict=True)}
        rounded[name] = mx.dequantize(*parts, group_size=32, bits=8)
    ours = kind.sanitize(quantized)
    encoder, plain = kind(config_of(folder)), kind(config_of(folder))
    nn.quantize(encoder, group_size=32, bits=8, class_predicate=lambda path, _: f"{path}.scales" in ours)
    encoder.load_weights(list(ours.items()), strict=True)
    plain.load_weights(list(kind.sanitize(rounded).items()), strict=True)
    rows = random_rows([3, 20], vocabulary=64)
    for found, expected in zip(batch_states(encoder, rows), batch_states(plain, rows), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)  # one network, products in another order


@pytest.mark.parametrize(
    ("lost", "added"),
    [
        ("encoder.layer.1.attention.self.key.weight", None),
        ("embeddings.LayerNorm.weight", None),
        (None, "encoder.layer.0.attention.self.distance_embedding.weight"),
        (None, "encoder.layer.2.output.dense.weight"),
    ],
)
def test_what_does_not_fit_is_seen_when_weights_are_loaded(tmp_path: Path, lost: str | None, added: str | None) -> None:
    folder = tiny_bert(tmp_path / "model")
    kind = kind_of(folder)
    weights = {name: array for name, array in weights_of(folder).items() if name != lost} | ({added: NOTHING} if added else {})
    with pytest.raises(ValueError, match="parameters"):
        kind(config_of(folder)).load_weights(list(kind.sanitize(weights).items()), strict=True)
