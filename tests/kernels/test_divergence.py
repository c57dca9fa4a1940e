"""Tests both ways to compute divergence, the specification and the CPU's, against float64 and closed forms."""

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import divergence, logprobs
from mlx_bulk.kernels.divergence import Divergence
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Measure = Callable[[Floats, Floats, Ints], Divergence]

NAMES = ("kls", "delta_ps", "agreements", "reference_logprobs")
INF = np.float32(np.inf)


def by_specification(logits: Floats, reference: Floats, targets: Ints) -> Divergence:
    return Divergence(*(np.array(part) for part in divergence.specification(mx.array(logits), mx.array(reference), mx.array(targets))))


MEASURES = [pytest.param(by_specification, id="specification"), pytest.param(divergence.on_cpu, id="on_cpu")]
BOTH = pytest.mark.parametrize("measure", MEASURES)


def log_softmax(x: Floats) -> Doubles:
    wide = x.astype(np.float64)
    peak = wide.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return wide - peak - np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))


def kl_in_float64(logits: Floats, reference: Floats) -> Doubles:
    logq, logp = log_softmax(logits), log_softmax(reference)
    allowed = np.isfinite(logp)
    terms = np.where(allowed, np.exp(logp) * (np.where(allowed, logp, 0.0) - np.where(np.isfinite(logq), logq, 0.0)), 0.0)
    terms[allowed & np.isneginf(logq)] = np.inf
    return np.array([math.fsum(row) for row in terms])


def assert_right(found: Divergence, logits: Floats, reference: Floats, targets: Ints) -> None:
    """KL to 1e-5: mx.exp is off by up to 1.8e-6 of itself on the CPU, alike for equal logits, and enters each sum. Logprobs to
    float32's rounding of values up to 100.
    """
    logq, logp, at = log_softmax(logits), log_softmax(reference), np.arange(len(logits))
    np.testing.assert_allclose(found.kls, kl_in_float64(logits, reference), rtol=5e-6, atol=1e-5)
    np.testing.assert_allclose(found.delta_ps, np.exp(logq[at, targets]) - np.exp(logp[at, targets]), rtol=0, atol=4e-5)
    np.testing.assert_allclose(found.reference_logprobs, logp[at, targets], rtol=0, atol=3e-5)
    assert found.agreements.tolist() == [list(x).index(max(x)) == list(r).index(max(r)) for x, r in zip(logits, reference, strict=True)]
    assert [getattr(found, name).dtype for name in NAMES] == [np.float32, np.float32, np.bool_, np.float32]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Floats, Floats, Ints]:
    """Logits of two models [N, V] around the blocks' sizes, near each other or not, with ties, offsets and -inf; targets."""
    v, n = draw(st.sampled_from([1, 2, 7, 255, 256, 257, 1030])), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    reference = rng.normal(0, draw(st.sampled_from([0.5, 3.0, 20.0])), (n, v))
    logits = reference + rng.normal(0, draw(st.sampled_from([0.01, 1.0, 10.0])), (n, v)) + draw(st.sampled_from([0.0, 50.0]))
    if draw(st.booleans()):
        reference, logits = np.round(reference), np.round(logits)
    rare = draw(st.sampled_from([0.0, 0.3]))
    no_chance = rng.random((n, v)) < rare
    reference[no_chance] = -np.inf
    logits[no_chance & (rng.random((n, v)) < 0.5)] = -np.inf
    logits[rng.random((n, v)) < draw(st.sampled_from([0.0, 0.01]))] = -np.inf
    logits[np.arange(n), rng.integers(0, v, n)] = reference[np.arange(n), rng.integers(0, v, n)] = 1.0
    return logits.astype(np.float32), reference.astype(np.float32), rng.integers(0, v, n).astype(np.int32)


@BOTH
@settings(max_examples=150, deadline=None)
@given(pairs())
def test_figures_are_those_of_float64(measure: Measure, pair: tuple[Floats, Floats, Ints]):
    assert_right(measure(*pair), *pair)


@BOTH
@pytest.mark.parametrize("v", [7, 2048, 152_064])
@pytest.mark.parametrize("apart", [1e-3, 0.1, 2.0])
def test_no_vocabulary_is_too_large_and_no_difference_too_small(measure: Measure, v: int, apart: float):
    """Where models are near each other KL is tiny (5e-7 here at the least): off by at most 3e-6 and by 1e-5 of itself."""
    rng = np.random.default_rng(v)
    reference = rng.normal(0, 3, (5, v)).astype(np.float32)
    logits = (reference + rng.normal(0, apart, (5, v))).astype(np.float32)
    targets = np.array([0, 1, 2, v // 2, v - 1], np.int32)
    found = measure(logits, reference, targets)
    np.testing.assert_allclose(found.kls, kl_in_float64(logits, reference), rtol=1e-5, atol=3e-6)
    np.testing.assert_allclose(found.reference_logprobs, log_softmax(reference)[np.arange(5), targets], rtol=0, atol=5e-6)


@BOTH
@pytest.mark.parametrize("v", [7, 2048, 152_064])
def test_a_model_does_not_differ_from_itself(measure: Measure, v: int):
    x = np.random.default_rng(0).normal(10, 5, (3, v)).astype(np.float32)
    found = measure(x, x.copy(), np.array([0, 3, v - 1], np.int32))
    assert found.kls.tolist() == [0.0, 0.0, 0.0]
    assert found.delta_ps.tolist() == [0.0, 0.0, 0.0]
    assert found.agreements.all()


@BOTH
@pytest.mark.parametrize("offset", [0.0, -300.0, 1000.0])
def test_the_divergence_of_two_known_distributions(measure: Measure, offset: float):
    """KL((1/2, 1/4, 1/4) ‖ (1/4, 1/4, 1/2)) = ln 2 / 4; logits of 1000 are themselves rounded to 6e-5."""
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.25, 0.5]])
    logits, reference = (np.log(q) + offset).astype(np.float32), np.log(p).astype(np.float32)
    found = measure(logits, reference, np.array([2], np.int32))
    near = 1e-6 if offset == 0.0 else 1e-4
    np.testing.assert_allclose(found.kls, [math.log(2) / 4], rtol=0, atol=near)
    np.testing.assert_allclose(found.delta_ps, [0.25], rtol=0, atol=near)
    np.testing.assert_allclose(found.reference_logprobs, [math.log(0.25)], rtol=0, atol=1e-6)
    assert found.agreements.tolist() == [False]


@BOTH
@pytest.mark.filterwarnings("error")
def test_no_chance_counts_nothing_in_the_reference_and_everything_in_the_model(measure: Measure):
    both = [[0.0, -INF, 0.0], [0.0, -INF, 0.0]]
    reference_alone = [[0.0, 0.0, 0.0], [0.0, -INF, 0.0]]
    model_alone = [[0.0, -INF, 0.0], [0.0, 0.0, 0.0]]
    logits, reference = (np.array(rows, np.float32) for rows in zip(both, reference_alone, model_alone, strict=True))
    found = measure(logits, reference, np.array([1, 1, 1], np.int32))
    np.testing.assert_allclose(found.kls, [0.0, math.log(1.5), np.inf], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.delta_ps, [0.0, 1 / 3, -1 / 3], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.reference_logprobs, [-np.inf, -np.inf, -math.log(3)], rtol=0, atol=1e-6)


@BOTH
@pytest.mark.parametrize("below", [50.0, 95.0, 500.0])
def test_what_the_model_excludes_counts_however_small_it_is_for_the_reference(measure: Measure, below: float):
    """exp(-95) is less than a normal float32, exp(-500) is 0 in float64: the logits say that there is a chance."""
    reference, logits = np.array([[0.0, -below, 0.0]], np.float32), np.array([[0.0, -INF, 0.0]], np.float32)
    assert measure(logits, reference, np.zeros(1, np.int32)).kls.tolist() == [np.inf]
    np.testing.assert_allclose(measure(reference, logits, np.zeros(1, np.int32)).kls, [0.0], rtol=0, atol=1e-6)


@BOTH
@pytest.mark.parametrize("v", [12, 256, 3000])
@pytest.mark.filterwarnings("error")
def test_rows_without_numbers_come_out_as_nan_and_spare_the_others(measure: Measure, v: int):
    rng = np.random.default_rng(1)
    logits, reference = rng.normal(0, 1, (2, 6, v)).astype(np.float32)
    logits[1, 5] = reference[2, v - 1] = np.nan
    logits[3], reference[4] = -np.inf, -np.inf
    reference[5, : v // 2] = -np.inf
    targets = np.zeros(6, np.int32)
    found = measure(logits, reference, targets)
    np.testing.assert_array_equal(np.isnan(found.kls), [False, True, True, True, True, False])
    assert_right(found[np.array([0, 5])], logits[[0, 5]], reference[[0, 5]], targets[:2])


@BOTH
def test_equals_agree_by_the_lower_id(measure: Measure):
    reference = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]], np.float32)
    logits = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [0.0, 2.0, 2.0]], np.float32)
    assert measure(logits, reference, np.zeros(3, np.int32)).agreements.tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_halves_are_cast_before_anything_is_subtracted(dtype: mx.Dtype):
    rng = np.random.default_rng(2)
    model = mx.array(rng.normal(20, 4, (6, 300)).astype(np.float32)).astype(dtype)
    reference = mx.array(rng.normal(20, 4, (6, 300)).astype(np.float32))
    targets = np.arange(6, dtype=np.int32)
    found = divergence.diverge(model, reference, targets)
    assert_right(found, np.array(model.astype(mx.float32)), np.array(reference), targets)


def test_the_references_logprobs_are_those_that_scoring_gives():
    """To the bit: a model held against itself has a perplexity ratio of exactly 1."""
    x = mx.array(np.random.default_rng(4).normal(0, 4, (40, 5000)).astype(np.float32))
    targets = np.arange(40, dtype=np.int32)
    for stats in (False, True):
        found = divergence.diverge(x + 1, x, targets, logprobs.fuses(0, stats)).reference_logprobs
        np.testing.assert_array_equal(found, logprobs.score(x, targets, stats=stats).logprobs)


def test_the_specifications_too():
    """What Metal and CUDA compute, of logits far from 0, where each rounding shows."""
    x = mx.array(np.random.default_rng(4).normal(90, 40, (40, 5000)).astype(np.float32))
    targets = mx.arange(40)
    own, *_, found = divergence.specification(x, x, targets)
    np.testing.assert_array_equal(found, logprobs.reference(x, targets, 0, stats=False)[0])
    np.testing.assert_array_equal(own, mx.zeros(40))


def test_chunks_of_rows_are_one_result():
    v = 1 << 16
    n = 5 * divergence.CHUNK_BYTES // (4 * v) // 2  # two chunks and a half
    reference, logits = np.random.default_rng(3).normal(0, 3, (2, n, v)).astype(np.float32)
    targets = np.arange(n, dtype=np.int32)
    whole = divergence.on_cpu(logits, reference, targets)
    assert [len(getattr(whole, name)) for name in NAMES] == [n] * 4
    for i in (0, n // 2, n - 1):
        alone = divergence.on_cpu(logits[i : i + 1], reference[i : i + 1], targets[i : i + 1])
        for name in NAMES:
            np.testing.assert_array_equal(getattr(whole[i : i + 1], name), getattr(alone, name))


def test_no_positions_have_no_figures():
    empty = divergence.on_cpu(np.zeros((0, 300), np.float32), np.zeros((0, 300), np.float32), np.zeros(0, np.int32))
    assert [getattr(empty, name).shape for name in NAMES] == [(0,)] * 4


def test_parts_are_joined_in_order():
    x = np.random.default_rng(5).normal(0, 2, (2, 9, 50)).astype(np.float32)
    targets = np.arange(9, dtype=np.int32)
    whole = divergence.on_cpu(x[0], x[1], targets)
    joined = divergence.join_divergences([whole[:2], whole[2:2], whole[2:]])
    for name in NAMES:
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))


@BOTH
def test_what_rounding_takes_below_zero_stays_there(measure: Measure):
    """Cut off at 0, a mean of many near-equal distributions would be too large."""
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 3, (200, 500)).astype(np.float32)
    logits = (reference + rng.normal(0, 1e-5, reference.shape)).astype(np.float32)
    kls = measure(logits, reference, np.zeros(200, np.int32)).kls
    assert -1e-5 < kls.min() < 0
