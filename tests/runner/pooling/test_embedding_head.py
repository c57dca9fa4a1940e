"""Dense layers, the cut and the length of vectors against float64."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.pooling.head_network import head_network
from mlx_bulk.runner.pooling.sentence_folder import read_sentence_folder
from mlx_bulk.runner.pooling.spec import Activation, EmbeddingHead, Normalize, embedding_spec
from numpy.typing import NDArray

from ...sentence_folders import write_dense, write_modules

Floats = NDArray[np.float64]
NEAR = 2e-6  # float32 products of 6 to 16 numbers of size 1
STATES = np.random.default_rng(1).standard_normal((3, 4, 6))
LENGTHS = [4, 2, 3]
MEANS = np.stack([row[:length].mean(axis=0) for row, length in zip(STATES, LENGTHS, strict=True)])


def erf(x: Floats) -> Floats:
    return np.vectorize(math.erf)(x)


FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {  # as PyTorch's documentation gives them
    "ELU": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "GELU": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "Identity": lambda x: x,
    "LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "ReLU": lambda x: np.maximum(x, 0),
    "SELU": lambda x: 1.0507009873554804934193349852946 * np.where(x > 0, x, 1.6732632423543772848170429916717 * (np.exp(x) - 1)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Tanh": np.tanh,
}


def vectors(head: EmbeddingHead) -> Any:
    network = head_network(embedding_spec(head, 6), None)
    states = mx.array(STATES.astype(np.float32))
    return np.array(network(states, mx.zeros((3, 4), mx.int32), mx.array(LENGTHS), mx.zeros(3, mx.int32)))


def weights(folder: Path) -> dict[str, Any]:
    held: Any = mx.load(str(folder / "model.safetensors"))
    return {name: np.array(array.astype(mx.float32), np.float64) for name, array in held.items()}


def of_folder(folder: Path) -> EmbeddingHead:
    head = read_sentence_folder(folder).head
    assert head is not None
    return head


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR)


@pytest.mark.parametrize("name", get_args(Activation))
def test_a_dense_layer_applies_its_activation(tmp_path: Path, name: str) -> None:
    write_modules(
        tmp_path, ("Pooling", {"pooling_mode": "mean"}), write_dense(tmp_path, 2, 6, 16, activation_function=f"torch.nn.modules.x.{name}")
    )
    w = weights(tmp_path / "2_Dense")
    near(vectors(of_folder(tmp_path)), FUNCTIONS[name](MEANS @ w["linear.weight"].T + w["linear.bias"]))


@pytest.mark.parametrize("outputs", [6, 16])
def test_a_residual_is_added_behind_the_activation(tmp_path: Path, outputs: int) -> None:
    write_modules(
        tmp_path, ("Pooling", {"pooling_mode": "mean"}), write_dense(tmp_path, 2, 6, outputs, bias=False, use_residual=True)
    )  # without a name the activation is Tanh
    w = weights(tmp_path / "2_Dense")
    straight = MEANS if outputs == 6 else MEANS @ w["residual.weight"].T
    near(vectors(of_folder(tmp_path)), np.tanh(MEANS @ w["linear.weight"].T) + straight)


def unit(x: Floats) -> Floats:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_modes_are_joined_in_their_order() -> None:
    firsts = STATES[:, 0]
    near(vectors(EmbeddingHead(("cls", "mean"))), np.concatenate([firsts, MEANS], axis=1))


def test_a_cut_comes_last_and_the_length_is_set_again() -> None:
    near(vectors(EmbeddingHead(("mean",), (Normalize(),), cut=4)), unit(MEANS)[:, :4])
    near(vectors(EmbeddingHead(("mean",), (Normalize(),), cut=4, normalize=True)), unit(MEANS[:, :4]))


def test_a_vector_of_zeros_stays_zeros() -> None:
    network = head_network(embedding_spec(EmbeddingHead(("mean",), (Normalize(),)), 6), None)
    found = np.array(network(mx.zeros((1, 2, 6)), mx.zeros((1, 2), mx.int32), mx.array([2]), mx.array([0])))
    assert (found == 0).all()


def test_weights_in_half_precision_are_computed_in_float32(tmp_path: Path) -> None:
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "mean"}), write_dense(tmp_path, 2, 6, 16))
    path = tmp_path / "2_Dense" / "model.safetensors"
    held: Any = mx.load(str(path))
    mx.save_safetensors(str(path), {name: array.astype(mx.bfloat16) for name, array in held.items()})
    w = weights(path.parent)
    near(vectors(of_folder(tmp_path)), np.tanh(MEANS @ w["linear.weight"].T + w["linear.bias"]))


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, ("Pooling", {"pooling_mode": "mean"}), write_dense(tmp_path, 2, 6, 16))
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"2_Dense/model\.safetensors cannot be loaded: .*; fetch the model anew"):
        vectors(of_folder(tmp_path))
