"""Tests whole classifiers as the runner loads them: their logits are those of NumPy in float64 on the body's states."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.pooling.spec import TokenHead
from numpy.typing import NDArray

from ...checkpoints import LLAMA, write_checkpoint
from ...encoder_checkpoints import tiny_bert, tiny_roberta
from ...hf_classifiers import logits_of, network_of

PAD = 7
ROWS = [[5, 6, 9, 8, PAD], [9, 5, 6], [8], [PAD, 5, 9, 6]]
Floats = NDArray[np.float64]


def tiny_decoder(folder: Path, labels: int) -> Path:
    """A llama whose pad's id ends some rows, with a score of random weights in the place of the LM head."""
    path = write_checkpoint(folder, LLAMA | {"pad_token_id": PAD})
    weights: Any = mx.load(str(path / "model.safetensors"))
    mx.eval(weights)
    del weights["lm_head.weight"]
    weights["score.weight"] = mx.random.normal((labels, 64), key=mx.random.key(3))
    mx.save_safetensors(str(path / "model.safetensors"), weights)
    return path


def weights_in(path: Path) -> dict[str, Floats]:
    weights: Any = mx.load(str(path / "model.safetensors"))
    return {name: np.array(array, np.float64) for name, array in weights.items()}


def states(network: Any, row: list[int]) -> Floats:
    return np.array(network.body(mx.array([row]), [len(row)]), np.float64)[0]


def score(w: dict[str, Floats], x: Floats, row: list[int]) -> Floats:
    last = max([at for at, token in enumerate(row) if token != PAD], default=0)
    return w["score.weight"] @ x[last]


def bert(w: dict[str, Floats], x: Floats, row: list[int]) -> Floats:
    inner = np.tanh(w["bert.pooler.dense.weight"] @ x[0] + w["bert.pooler.dense.bias"])
    return w["classifier.weight"] @ inner + w["classifier.bias"]


def roberta(w: dict[str, Floats], x: Floats, row: list[int]) -> Floats:
    inner = np.tanh(w["classifier.dense.weight"] @ x[0] + w["classifier.dense.bias"])
    return w["classifier.out_proj.weight"] @ inner + w["classifier.out_proj.bias"]


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize(("write", "head"), [(tiny_decoder, score), (tiny_bert, bert), (tiny_roberta, roberta)])
def test_logits_are_the_heads_of_the_rows_states_alone_and_in_a_batch(
    tmp_path: Path, write: Callable[[Path, int], Path], head: Callable[..., Floats], labels: int
):
    path = write(tmp_path / "model", labels)
    network, weights = network_of(path), weights_in(path)
    truth = np.stack([head(weights, states(network, row), row) for row in ROWS])
    assert truth.shape == (4, labels)
    np.testing.assert_allclose(logits_of(network, ROWS), truth, rtol=0, atol=2e-5)
    np.testing.assert_allclose(np.concatenate([logits_of(network, [row]) for row in ROWS]), truth, rtol=0, atol=2e-5)


def test_a_generative_rerankers_score_is_that_of_the_language_models_last_logits(tmp_path: Path):
    path = write_checkpoint(tmp_path / "model")
    network, weights = network_of(path, TokenHead(40, 41)), weights_in(path)["lm_head.weight"]
    truth = np.stack([(weights[40] - weights[41]) @ states(network, row)[-1] for row in ROWS])
    np.testing.assert_allclose(logits_of(network, ROWS)[:, 0], truth, rtol=0, atol=2e-5)


def test_two_tokens_of_an_encoder_are_refused(tmp_path: Path):
    with pytest.raises(ModelError, match="the logits of two tokens are a language model's, and this is an encoder"):
        network_of(tiny_bert(tmp_path / "bert", 1), TokenHead(4, 5))


def test_a_quantized_body_has_its_head_in_floats(tmp_path: Path):
    """An mlx conversion quantizes the body; a head that it quantizes too is refused by name."""
    path = tiny_decoder(tmp_path / "model", 2)
    truth = logits_of(network_of(path), ROWS)
    weights: Any = mx.load(str(path / "model.safetensors"))
    packed: dict[str, mx.array] = {}
    for name, array in weights.items():
        if array.ndim == 2 and name != "score.weight":
            parts = mx.quantize(array, group_size=32, bits=8)
            packed |= {name.removesuffix("weight") + end: part for end, part in zip(("weight", "scales", "biases"), parts, strict=True)}
        else:
            packed[name] = array
    mx.eval(packed)
    mx.save_safetensors(str(path / "model.safetensors"), packed)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization": {"group_size": 32, "bits": 8}}))
    found = logits_of(network_of(path), ROWS)
    assert 0 < np.abs(found - truth).max() < 0.05 * np.abs(truth).max()
