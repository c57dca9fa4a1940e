"""Tests the classifiers' layers and the tokens that they read against NumPy in float64."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.pooling.classifier_heads import ClassifierNetwork, TokenScore, last_counted
from mlx_bulk.runner.pooling.spec import ClassifierHead, HeadLinear, HeadNorm, TokenHead
from numpy.typing import NDArray

H = 6
LENGTHS = [5, 2, 1]
PAD = 9
TOKENS = [[4, 5, 6, PAD, PAD], [7, 8, PAD, 3, 3], [PAD, 1, 1, 1, 1]]  # what lies behind a row's length is anything
Floats = NDArray[np.float64]


def states() -> Floats:
    values = np.random.default_rng(0).standard_normal((3, 5, H)).astype(np.float32).astype(np.float64)
    for row, length in enumerate(LENGTHS):
        values[row, length:] = np.nan  # what a pad holds never counts
    return values


def weights(head: ClassifierHead) -> dict[str, Floats]:
    rng, made = np.random.default_rng(1), dict[str, Floats]()
    for layer in head.layers:
        shape = (layer.outputs, layer.inputs) if isinstance(layer, HeadLinear) else (layer.width,)
        made[f"{layer.name}.weight"] = rng.standard_normal(shape)
        if layer.bias:
            made[f"{layer.name}.bias"] = rng.standard_normal(shape[:1])
    return {name: array.astype(np.float32).astype(np.float64) for name, array in made.items()}


def gelu(x: Floats) -> Floats:
    return x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2


def layer_norm(x: Floats, weight: Floats, bias: Floats) -> Floats:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def logits(head: ClassifierHead, given: dict[str, Floats], folder: Path) -> Floats:
    mx.save_safetensors(str(folder / "model.safetensors"), {name: mx.array(array.astype(np.float32)) for name, array in given.items()})
    classifier = ClassifierNetwork(replace(head, folder=folder))
    classifier.load()
    lengths = mx.array(LENGTHS)
    found = classifier(mx.array(states().astype(np.float32)), mx.array(TOKENS), lengths, mx.zeros_like(lengths))
    return np.array(found, np.float64)


@pytest.mark.parametrize(("pad", "places"), [(PAD, [2, 1, 0]), (None, [4, 1, 0]), (3, [4, 1, 0])])
def test_the_last_token_that_is_not_the_pads_id_is_read_also_where_the_row_ends_in_it(pad: int | None, places: list[int]):
    assert np.array(last_counted(mx.array(TOKENS), mx.array(LENGTHS), pad)).tolist() == places


@pytest.mark.parametrize("labels", [1, 3])
def test_a_decoders_score_is_a_product_of_its_last_counted_state(tmp_path: Path, labels: int):
    head = ClassifierHead("last", (HeadLinear("score", H, labels, bias=False),), PAD)
    w = weights(head)
    read = states()[np.arange(3), [2, 1, 0]]
    np.testing.assert_allclose(logits(head, w, tmp_path), read @ w["score.weight"].T, rtol=0, atol=2e-6)


def test_a_score_of_two_layers_has_a_relu_between_them(tmp_path: Path):
    head = ClassifierHead("last", (HeadLinear("score.0", H, H, bias=True, activation="relu"), HeadLinear("score.2", H, 1, bias=True)))
    w = weights(head)
    read = states()[np.arange(3), [4, 1, 0]]
    inner = np.maximum(read @ w["score.0.weight"].T + w["score.0.bias"], 0)
    np.testing.assert_allclose(logits(head, w, tmp_path), inner @ w["score.2.weight"].T + w["score.2.bias"], rtol=0, atol=4e-6)


def test_berts_classifier_reads_the_first_state_through_a_tanh(tmp_path: Path):
    head = ClassifierHead(
        "first", (HeadLinear("pooler.dense", H, H, bias=True, activation="tanh"), HeadLinear("classifier", H, 3, bias=True))
    )
    w = weights(head)
    inner = np.tanh(states()[:, 0] @ w["pooler.dense.weight"].T + w["pooler.dense.bias"])
    np.testing.assert_allclose(logits(head, w, tmp_path), inner @ w["classifier.weight"].T + w["classifier.bias"], rtol=0, atol=4e-6)


def test_modernberts_classifier_may_read_the_mean_of_a_rows_states(tmp_path: Path):
    dense = HeadLinear("head.dense", H, H, bias=False, activation="gelu")
    head = ClassifierHead("mean", (dense, HeadNorm("head.norm", H, 1e-5, bias=True), HeadLinear("classifier", H, 2, bias=True)))
    w = weights(head)
    read = np.stack([states()[row, :length].mean(0) for row, length in enumerate(LENGTHS)])
    inner = layer_norm(gelu(read @ w["head.dense.weight"].T), w["head.norm.weight"], w["head.norm.bias"])
    np.testing.assert_allclose(logits(head, w, tmp_path), inner @ w["classifier.weight"].T + w["classifier.bias"], rtol=0, atol=2e-5)


class Capped(nn.Module):
    """A language model whose logits are scaled and capped, as Gemma 2's and Granite's are; its embedding is its head, too."""

    def __init__(self, cap: float | None):
        super().__init__()
        self.model = nn.Embedding(11, H)
        self.cap = cap

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        x = self.model(tokens)
        raw = self.model.as_linear(x) / 4
        return raw if self.cap is None else mx.tanh(raw / self.cap) * self.cap


@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("no", [None, 2])
def test_a_token_score_is_of_the_logits_with_their_scale_and_cap(cap: float | None, no: int | None):
    network = Capped(cap)
    lengths = mx.array(LENGTHS)
    found = TokenScore(Network(network, Head(network)), TokenHead(7, no))(
        mx.array(states().astype(np.float32)), mx.array(TOKENS), lengths, mx.zeros_like(lengths)
    )
    read = states()[np.arange(3), [4, 1, 0]]
    raw = read @ np.array(network.model.weight, np.float64).T / 4
    truth = raw if cap is None else np.tanh(raw / cap) * cap
    expected = truth[:, [7]] - (0 if no is None else truth[:, [no]])
    np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=2e-6)
