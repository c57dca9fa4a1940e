"""Recurrent layers' kernels against their specification, float64, and mlx-lm's own functions."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import native
from mlx_bulk.kernels.recurrent import gated_delta, short_convolution, state_space
from mlx_lm.models.gated_delta import gated_delta_ops
from mlx_lm.models.ssm import ssm_attn
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

CLOSE = 2e-6  # of the largest value: float32's rounding of some hundred sums
MORE = settings(max_examples=30, deadline=None)


def chosen(rng: np.random.Generator, b: int, t: int) -> mx.array:
    return mx.array((rng.random((b, t)) < 0.7).tolist())


def arrays(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[mx.array]:
    return [mx.array(rng.normal(0, 1, shape).astype(np.float32)) for shape in shapes]


def assert_close(found: Any, truth: Any, allowed: float = CLOSE) -> None:
    for one, other in zip(found, truth, strict=True):
        ours, right = np.array(one), np.array(other)
        assert ours.shape == right.shape
        assert np.abs(ours - right).max() <= allowed * max(1.0, np.abs(right).max())


def space(b: int, t: int, heads: int, groups: int, d: int, n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    h = heads * groups
    x, inputs, outputs, skip, state = arrays(rng, (b, t, h, d), (b, t, groups, n), (b, t, groups, n), (h,), (b, h, d, n))
    step = mx.array(rng.uniform(0.001, 1.0, (b, t, h)).astype(np.float32))
    rates = mx.array(-rng.uniform(0.1, 4.0, h).astype(np.float32))
    return {"x": x, "step": step, "decay_rates": rates, "inputs": inputs, "outputs": outputs, "skip": skip, "state": state}


@MORE
@given(*[st.integers(1, most) for most in (3, 9, 3, 2, 9, 40)], st.integers(0, 99))
def test_the_scan_equals_its_specification(b: int, t: int, heads: int, groups: int, d: int, n: int, seed: int):
    of = space(b, t, heads, groups, d, n, seed)
    rng = np.random.default_rng(seed)
    seen = chosen(rng, b, t)
    lengths = mx.array(rng.integers(0, t + 1, b))
    for more in list[dict[str, Any]]([{}, {"state": None}, {"seen": seen}, {"lengths": lengths}, {"seen": seen, "lengths": lengths}]):
        assert_close(state_space.on_cpu(**of | more), state_space.reference(**of | more))


def test_the_scan_is_right_in_float64():
    of = space(2, 200, 4, 1, 8, 16, 0)
    x, step, rates, inputs, outputs, skip, state = (np.array(each, np.float64) for each in of.values())
    made: list[NDArray[np.float64]] = []
    for i in range(200):
        added = (step[:, i, :, None] * x[:, i])[..., None] * inputs[:, i, :, None]
        state = np.exp(step[:, i] * rates)[..., None, None] * state + added
        made.append((state * outputs[:, i, :, None]).sum(-1) + skip[:, None] * x[:, i])
    assert_close(state_space.on_cpu(**of), (np.stack(made, 1), state))


@pytest.mark.parametrize(("t", "padded"), [(1, False), (7, False), (257, False), (7, True), (255, True)])
def test_the_scan_equals_that_of_mlx_lm(t: int, padded: bool):
    """Padded rows on top of a state are left out: mlx-lm lets the state decay over the pads."""
    of = space(2, t, 3, 2, 5, 16, 1)
    raw = mx.array(np.random.default_rng(3).normal(0, 1, (2, t, 6)).astype(np.float32))
    lengths, before = (mx.array([t, t - 3]), None) if padded else (None, of["state"])
    given: dict[str, Any] = of | {"step": mx.clip(mx.logaddexp(raw, 0), 0.001, 100.0), "state": before}
    found = state_space.on_cpu(**given, lengths=lengths)
    names = of["x"], mx.log(-of["decay_rates"]), of["inputs"], of["outputs"], of["skip"], raw, mx.zeros(6), before
    seen = None if lengths is None else mx.arange(t) < lengths[:, None]
    truth = ssm_attn(*names, lengths=lengths, mask=seen)
    if padded:  # outputs behind a row's end are read by nobody
        found, truth = ((y[:, : t - 3], state) for y, state in (found, truth))
    assert_close(found, truth, 2e-5)  # mlx-lm sums the decays of up to 256 tokens before it takes exp


def delta(b: int, t: int, keys: int, repeats: int, d: int, e: int, each: bool, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    h = keys * repeats
    q, k, v, state = arrays(rng, (b, t, keys, d), (b, t, keys, d), (b, t, h, e), (b, h, e, d))
    k = k / mx.sqrt((k * k).sum(-1, keepdims=True))
    kept, beta = (mx.array(rng.uniform(0, 1, shape).astype(np.float32)) for shape in ((b, t, h, d) if each else (b, t, h), (b, t, h)))
    return {"q": q, "k": k, "v": v, "kept": kept, "beta": beta, "state": state}


@MORE
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 2), st.integers(1, 3), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_the_gated_delta_rule_equals_its_specification(b: int, t: int, keys: int, repeats: int, d: int, each: bool, seed: int):
    of = delta(b, t, keys, repeats, d, 1 + seed % 7, each, seed)
    seen = chosen(np.random.default_rng(seed), b, t)
    for more in list[dict[str, Any]]([{}, {"state": None}, {"seen": seen}]):
        assert_close(gated_delta.on_cpu(**of | more), gated_delta.reference(**of | more))


@pytest.mark.parametrize("each", [False, True])
def test_the_gated_delta_rule_equals_that_of_mlx_lm(each: bool):
    of = delta(2, 30, 2, 2, 32, 16, each, 5)
    assert_close(gated_delta.on_cpu(**of), gated_delta_ops(of["q"], of["k"], of["v"], of["kept"], of["beta"], of["state"]))


@MORE
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 40), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_the_short_convolution_equals_that_of_mlx(b: int, t: int, c: int, taps: int, biased: bool, seed: int):
    x, weight, bias = arrays(np.random.default_rng(seed), (b, t + taps - 1, c), (c, taps, 1), (c,))
    of = (x, weight, bias if biased else None)
    assert short_convolution.suits(*of)
    assert_close([short_convolution.on_cpu(*of)], [short_convolution.reference(*of)])


def test_a_row_does_not_depend_on_its_mates_nor_on_where_calls_are_cut():
    of = space(3, 12, 2, 1, 8, 16, 2)
    y, after = (np.array(each) for each in state_space.on_cpu(**of))
    one = {name: array if array.ndim == 1 else array[1:2] for name, array in of.items()}
    whole = ("decay_rates", "skip", "state")
    cut = [{name: array if name in whole else array[:, part] for name, array in one.items()} for part in (slice(0, 5), slice(5, 12))]
    first, between = state_space.on_cpu(**cut[0])
    second, end = state_space.on_cpu(**cut[1] | {"state": between})
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1)[0], y[1])
    np.testing.assert_array_equal(end[0], after[1])


def test_shapes_that_do_not_fit_are_left_to_mlx():
    of = space(2, 4, 2, 1, 3, 5, 0)
    shapes = {name: of[name] for name in ("x", "step", "inputs", "outputs", "state")}
    assert state_space.suits(**shapes, seen=None)
    for name in ("step", "outputs", "state"):
        assert not state_space.suits(**shapes | {name: shapes[name][:, :1]}, seen=None)
        assert not state_space.suits(**shapes | {name: shapes[name].astype(mx.float16)}, seen=None)
    assert not state_space.suits(**shapes, seen=mx.ones((2, 3), mx.bool_))
    rule = delta(2, 4, 1, 2, 8, 3, False, 0)
    assert gated_delta.suits(**rule)
    for name in rule:
        assert not gated_delta.suits(**rule | {name: rule[name][..., :1]})
