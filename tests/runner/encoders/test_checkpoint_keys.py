"""Names in checkpoints: prefixes, older names, buffers, heads of several kinds."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.encoders.encoder import Encoder
from mlx_bulk.runner.encoders.registry import encoder_class

from ...encoder_checkpoints import TINY_ENCODERS, tiny_bert, tiny_modernbert, tiny_roberta
from ..support.encoder_calls import config_of, weights_of

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
    prefix = {"bert": "bert.", "roberta": "roberta.", "modernbert": "model."}[family]
    bare = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
    assert_same(kind.sanitize(weights), kind.sanitize(bare))
    assert all(name.split(".")[0] in ("embeddings", "blocks", "final_norm") for name in kind.sanitize(weights))


@pytest.mark.parametrize(
    ("tiny", "heads"),
    [
        (tiny_bert, ["classifier.bias", "classifier.weight", "pooler.dense.bias", "pooler.dense.weight"]),
        (tiny_roberta, [f"classifier.{part}.{end}" for part in ("dense", "out_proj") for end in ("bias", "weight")]),
        (tiny_modernbert, ["classifier.bias", "classifier.weight", "head.dense.weight", "head.norm.weight"]),
    ],
)
def test_heads_are_given_apart_and_unchanged(tmp_path: Path, tiny: Callable[..., Path], heads: list[str]) -> None:
    folder = tiny(tmp_path / "classifier", labels=3)
    weights, found = weights_of(folder), kind_of(folder).head_weights(weights_of(folder))
    assert sorted(found) == heads
    assert_same(found, {name: weights.get(name, weights.get(f"bert.{name}", NOTHING)) for name in heads})


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
