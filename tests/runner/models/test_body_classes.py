"""Tests that a classifier's body is read into mlx-lm's network without an LM head, whatever else the checkpoint holds."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.models.body_classes import NoHead, body_classes
from mlx_lm.utils import load_model

from ...checkpoints import LLAMA, loaded, write_checkpoint

NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "vocab_size": 2048,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
}
IDS = mx.array([[5, 6, 7, 8]])


def opened(folder: Path) -> Any:
    return load_model(folder, lazy=True, get_model_classes=body_classes)[0]  # pyright: ignore[reportArgumentType]


def states(network: Any) -> Any:
    return np.array(Network(network, Head(network))(IDS, None, read="states"))


def rewrite(folder: Path, change: Any) -> None:
    file = str(folder / "model.safetensors")
    weights: Any = mx.load(file)
    mx.eval(weights)
    mx.save_safetensors(file, change(weights))


def classifier(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name: array for name, array in weights.items() if name != "lm_head.weight"} | {"score.weight": mx.zeros((3, 64))}


def bare(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name.removeprefix("model."): array for name, array in weights.items() if name != "lm_head.weight"}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("change", [classifier, bare, dict])
def test_a_body_is_the_same_with_a_classifier_without_prefix_and_with_an_lm_head(tmp_path: Path, change: Any, tied: bool):
    path = write_checkpoint(tmp_path / "model", LLAMA | {"tie_word_embeddings": tied})
    truth = states(load_model(path)[0])
    rewrite(path, change)
    network = opened(path)
    assert not [name for name, _ in tree_flatten(network.parameters()) if name.startswith("lm_head")]
    np.testing.assert_array_equal(states(network), truth)
    assert network(IDS).shape == (1, 4, 2048)


@pytest.mark.parametrize("whole", [False, True])
def test_a_head_within_the_body_is_left_out(tmp_path: Path, whole: bool):
    """mlx-lm's GPT-NeoX makes logits in its body: pooled, these would be taken for states."""
    path = write_checkpoint(tmp_path / "model", NEOX)
    network = loaded(path).network
    head = network.model.embed_out.weight
    if not whole:
        rewrite(path, lambda weights: {name: array for name, array in weights.items() if "embed_out" not in name})
    body = opened(path)
    found = states(body)
    assert found.shape == (1, 4, 64)
    assert body(IDS).shape == (1, 4, 2048)  # by which the vocabulary is known: ids beyond it would be read from elsewhere
    np.testing.assert_allclose(found @ np.array(head).T, np.array(network(IDS)), atol=1e-5)


def test_a_lacking_weight_of_the_body_is_an_error(tmp_path: Path):
    path = write_checkpoint(tmp_path / "model")
    rewrite(path, lambda weights: {name: array for name, array in classifier(weights).items() if name != "model.norm.weight"})
    with pytest.raises(ValueError, match=r"Missing 1 parameters: \nmodel\.norm\.weight"):
        opened(path)


def test_the_stand_ins_logits_are_the_states_over_and_over():
    x = mx.random.normal((2, 3))
    assert np.array(NoHead(7)(x)).tolist() == np.array(x)[:, [0, 1, 2, 0, 1, 2, 0]].tolist()
