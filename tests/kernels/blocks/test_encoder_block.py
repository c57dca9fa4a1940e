"""Tests an encoder's block on the CPU against NumPy in float64, and that a row's bits depend on its own tokens alone."""

from dataclasses import asdict, dataclass, replace
from math import erf, sqrt
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import elementwise, native
from mlx_bulk.kernels.blocks.encoder_block import EncoderConstants, EncoderWeights, PackedBlock, reference, suits
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

Doubles = NDArray[np.float64]
ATOL = 1e-5  # of values up to 15, sums of up to 900 products
LENGTHS = [57, 1, 90, 23, 7, 0]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a block."""

    d: int = 48
    heads: int = 4
    hidden: int = 70
    gated: bool = False
    rotated: bool = False
    biased: bool = True
    first_norms: bool = False
    normed: bool = True
    window: int | None = None
    activation: str = "gelu"


SHAPES = {
    "BERT": Shape(),
    "no biases": Shape(biased=False),
    "MiniLM": Shape(d=384, heads=12, hidden=1536),
    "ModernBERT": Shape(d=64, heads=2, hidden=100, gated=True, rotated=True, biased=False, first_norms=True, window=5),
    "ModernBERT's first block": Shape(d=64, heads=2, hidden=100, gated=True, rotated=True, biased=False, first_norms=True, normed=False),
    "odd sizes": Shape(d=50, heads=5, hidden=33, gated=True, first_norms=True, window=2, activation="silu"),
    "a token sees itself alone": Shape(d=400, heads=4, hidden=900, window=0, activation="relu"),
    "a window of whole vectors": Shape(window=32, activation="gelu_tanh"),
    "CLIP": Shape(first_norms=True, activation="quick_gelu"),
}


def block_of(s: Shape) -> tuple[EncoderWeights, EncoderConstants]:
    rng = np.random.default_rng(0)

    def random(*shape: int, by: float = 1.0, around: float = 0.0) -> mx.array:
        return mx.array((around + by * rng.standard_normal(shape)).astype(np.float32))

    sizes = {"qkv": (3 * s.d, s.d), "output": (s.d, s.d), "mlp_input": (s.hidden, s.d), "mlp_output": (s.d, s.hidden)}
    sizes |= {"gate": (s.hidden, s.d)} if s.gated else {}
    arrays = {name: random(n, k, by=k**-0.5) for name, (n, k) in sizes.items()}
    arrays |= {f"{name}_bias": random(n) for name, (n, _) in sizes.items() if s.biased}
    norms = ["norm", "second_norm"] if s.normed else ["second_norm"]
    arrays |= {name: random(s.d, by=0.3, around=1.0) for name in norms}
    arrays |= {f"{name}_bias": random(s.d) for name in norms if s.biased}
    if s.rotated:
        arrays["frequencies"] = mx.array(np.logspace(0, -3, s.d // s.heads // 2).astype(np.float32))
    constants = EncoderConstants(s.heads, 1e-5, 1e-2, s.first_norms, s.normed, s.window, s.activation)
    return EncoderWeights(**arrays), constants


def inputs(d: int, rows: int = len(LENGTHS), t: int = max(LENGTHS)) -> mx.array:
    return mx.array(np.random.default_rng(1).standard_normal((rows, t, d)).astype(np.float32))


def in_float64(x: Doubles, w: EncoderWeights, c: EncoderConstants) -> Doubles:
    """One row [T, d] without pads -> [T, d]."""
    of: dict[str, Any] = {name: None if array is None else np.array(array, np.float64) for name, array in asdict(w).items()}
    t, d = x.shape

    def product(y: Doubles, name: str) -> Doubles:
        return y @ of[name].T + (0 if of[f"{name}_bias"] is None else of[f"{name}_bias"])

    def norm(y: Doubles, name: str, eps: float) -> Doubles:
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + eps) * of[name]
        return y + (0 if of[f"{name}_bias"] is None else of[f"{name}_bias"])

    def rotated(y: Doubles) -> Doubles:
        if w.frequencies is None:
            return y
        turn = np.exp(1j * np.arange(t)[:, None] * of["frequencies"])
        half = y.shape[-1] // 2
        pairs = (y[..., :half] + 1j * y[..., half:]) * turn
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def attended(y: Doubles) -> Doubles:
        q, k, v = product(y, "qkv").reshape(t, 3, c.heads, -1).transpose(1, 2, 0, 3)
        scores = rotated(q) @ rotated(k).swapaxes(1, 2) / sqrt(d // c.heads)
        if c.window is not None:
            scores = np.where(np.abs(np.subtract.outer(np.arange(t), np.arange(t))) <= c.window, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return product((weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(t, d), "output")

    def active(y: Doubles) -> Doubles:
        if c.activation == "gelu":
            return y * (1 + np.vectorize(erf)(y / sqrt(2))) / 2
        if c.activation == "relu":
            return np.maximum(y, 0)
        slopes = {"silu": y, "quick_gelu": 1.702 * y, "gelu_tanh": 2 * sqrt(2 / np.pi) * (y + 0.044715 * y**3)}
        return y / (1 + np.exp(-slopes[c.activation]))

    def fed(y: Doubles) -> Doubles:
        up = product(y, "mlp_input")
        return product(active(up) if w.gate is None else active(product(y, "gate")) * up, "mlp_output")

    if c.first_norms:
        x = x + attended(norm(x, "norm", c.eps) if c.normed else x)
        return x + fed(norm(x, "second_norm", c.second_eps))
    x = norm(x + attended(x), "norm", c.eps)
    return norm(x + fed(x), "second_norm", c.second_eps)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_block_is_that_of_float64_and_of_the_specification(shape: Shape):
    weights, constants = block_of(shape)
    x = inputs(shape.d)
    found, specified = np.array(PackedBlock(weights, constants)(x, np.array(LENGTHS))), np.array(reference(x, LENGTHS, weights, constants))
    for row, n in enumerate(LENGTHS):
        truth = in_float64(np.array(x[row, :n], np.float64), weights, constants) if n else np.zeros((0, shape.d))
        np.testing.assert_allclose(found[row, :n], truth, rtol=0, atol=ATOL)
        np.testing.assert_allclose(found[row, :n], specified[row, :n], rtol=0, atol=2 * ATOL)
        assert (found[row, n:] == 0).all()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_rows_bits_depend_on_its_tokens_alone(shape: Shape):
    """Alone, without pads, among others in another place: as it falls into other tiles of rows, chunks and threads."""
    block = PackedBlock(*block_of(shape))
    x = inputs(shape.d)
    found = block(x, np.array(LENGTHS))
    order = [3, 0, 5, 2, 4, 1]
    turned = block(x[mx.array(order)], np.array([LENGTHS[row] for row in order]))
    for place, row in enumerate(order):
        n = LENGTHS[row]
        assert mx.array_equal(turned[place, :n], found[row, :n])
        if n:
            assert mx.array_equal(block(x[row : row + 1, :n], np.array([n]))[0], found[row, :n])


@pytest.mark.parametrize("window", [None, 3])
def test_a_bias_is_added_to_the_scores(window: int | None):
    weights, constants = block_of(Shape(window=window))
    x, bias = inputs(48), mx.array(np.random.default_rng(2).normal(0, 3, (1, 4, 90, 90)).astype(np.float32))
    found, specified = PackedBlock(weights, constants)(x, np.array(LENGTHS), bias), reference(x, LENGTHS, weights, constants, bias)
    assert not mx.allclose(found, PackedBlock(weights, constants)(x, np.array(LENGTHS)), atol=1e-2)
    for row, n in enumerate(LENGTHS):
        np.testing.assert_allclose(found[row, :n], specified[row, :n], rtol=0, atol=2 * ATOL)


@pytest.mark.parametrize("window", [None, 40])
def test_a_long_row_alone_is_shared_among_threads(window: int | None):
    """600 tokens in one head: tiles of queries are the tasks, and each token's chunk holds but a part of its row."""
    weights, constants = block_of(Shape(heads=1, d=24, window=window))
    x = inputs(24, 1, 600)
    found = np.array(PackedBlock(weights, constants)(x, np.array([600])))
    np.testing.assert_allclose(found[0], in_float64(np.array(x[0], np.float64), weights, constants), rtol=0, atol=ATOL)


def test_many_short_rows_are_a_task_each():
    weights, constants = block_of(Shape())
    lengths = [1 + row % 5 for row in range(100)]
    x = inputs(48, 100, 5)
    found = np.array(PackedBlock(weights, constants)(x, np.array(lengths)))
    for row in (0, 41, 99):
        truth = in_float64(np.array(x[row, : lengths[row]], np.float64), weights, constants)
        np.testing.assert_allclose(found[row, : lengths[row]], truth, rtol=0, atol=ATOL)


def test_nan_stays_in_its_row_and_pads_are_not_read():
    weights, constants = block_of(Shape())
    x = np.array(inputs(48, 3, 10))
    clean = PackedBlock(weights, constants)(mx.array(x), np.array([10, 4, 10]))
    x[1, 4:], x[2, 3, 5] = np.nan, np.nan
    found = PackedBlock(weights, constants)(mx.array(x), np.array([10, 4, 10]))
    assert mx.array_equal(found[:2], clean[:2])
    assert np.isnan(np.array(found[2])).all()


def test_rows_without_tokens_give_zeros():
    weights, constants = block_of(Shape())
    assert not PackedBlock(weights, constants)(inputs(48, 2, 3), np.array([0, 0])).any()


def test_scores_far_apart_do_not_overflow():
    """Scores of 1e4: one key takes all the weight."""
    weights, constants = block_of(Shape())
    weights = replace(weights, qkv=weights.qkv * 100)
    x = inputs(48, 1, 20)
    found = np.array(PackedBlock(weights, constants)(x, np.array([20])))[0]
    truth = in_float64(np.array(x[0], np.float64), weights, constants)
    assert np.isfinite(found).all()
    assert np.median(np.abs(found - truth)) < 1e-3


def test_each_activation_has_the_librarys_number():
    """A block's activations are told apart: no two of them give the same."""
    x, found = inputs(48, 1, 5), []
    for activation in elementwise.ACTIVATIONS:
        weights, constants = block_of(Shape(activation=activation))
        found.append(np.array(PackedBlock(weights, constants)(x, np.array([5]))))
    assert all(np.abs(a - b).max() > 1e-5 for i, a in enumerate(found) for b in found[:i])


def test_what_does_not_fit_does_not_suit():
    x = inputs(48, 2, 10)
    assert suits(x, [10, 0], 4)
    assert suits(x, [10, 0], 4, mx.zeros((1, 4, 10, 10)))
    assert not suits(x, [10, 11], 4)
    assert not suits(x, [10], 4)
    assert not suits(x[0], [10], 4)
    assert not suits(x.astype(mx.bfloat16), [10, 1], 4)
    assert not suits(x, [10, 0], 4, mx.zeros((1, 3, 10, 10)))
    assert not suits(x, [10, 0], 4, mx.zeros((1, 4, 10, 9)))
