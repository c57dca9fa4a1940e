"""Tests both ways to score, the specification and the CPU's, against float64 and sorting."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import backend, logprobs
from mlx_bulk.kernels.largest import BLOCK
from mlx_bulk.kernels.logprobs import BLOCK_BYTES, Scores
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Scorer = Callable[[Floats, Ints, int, bool], Scores]


def by_specification(x: Floats, targets: Ints, top: int, stats: bool) -> Scores:
    parts = logprobs.reference(mx.array(x), mx.array(targets), top, stats, greedy=True)
    return Scores(*(None if p is None else np.array(p) for p in parts))  # pyright: ignore[reportArgumentType]


def by_numpy(x: Floats, targets: Ints, top: int, stats: bool) -> Scores:
    return logprobs.on_cpu(x, targets, top, stats, greedy=True)


SCORERS = [pytest.param(by_specification, id="reference"), pytest.param(by_numpy, id="on_cpu")]


def oracle(x: Floats, targets: Ints, top: int) -> tuple[NDArray[np.float64], Ints, Ints, NDArray[np.float64]]:
    """log_softmax [N, V], ids of the top by sorting [N, top], ranks [N], entropies [N], in float64."""
    wide = x.astype(np.float64)
    peak = wide.max(axis=1, keepdims=True)
    logp = wide - peak - np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))
    order = np.array([sorted(range(x.shape[1]), key=lambda i, row=row: (-row[i], i)) for row in x])
    ranks = (order == targets[:, None]).argmax(axis=1) + 1
    p = np.exp(logp)
    return logp, order[:, :top].astype(np.int32), ranks.astype(np.int32), -np.where(p > 0, p * np.where(p > 0, logp, 0), 0).sum(axis=1)


def assert_right(scores: Scores, x: Floats, targets: Ints, top: int) -> None:
    """Ids and ranks are exact. Logprobs differ by float32's rounding of values up to 100 and of sums: 3e-5."""
    logp, ids, ranks, entropies = oracle(x, targets, top)
    at = np.arange(len(x))
    np.testing.assert_allclose(scores.logprobs, logp[at, targets], rtol=0, atol=3e-5)
    assert scores.logprobs.dtype == np.float32
    np.testing.assert_array_equal(scores.ranks, ranks)
    if scores.greedy is not None:
        np.testing.assert_array_equal(scores.greedy, ranks == 1)
    assert scores.entropies is not None
    np.testing.assert_allclose(scores.entropies, entropies, rtol=0, atol=1e-4)
    if top:
        np.testing.assert_array_equal(scores.top_ids, ids)
        assert scores.top_logprobs is not None
        np.testing.assert_allclose(scores.top_logprobs, np.take_along_axis(logp, ids.astype(np.int64), axis=1), rtol=0, atol=3e-5)


@st.composite
def scored(draw: st.DrawFn) -> tuple[Floats, Ints, int]:
    """Logits [N, V] around the blocks' sizes, with ties and -inf; targets; a top of at most V."""
    v = draw(st.sampled_from([1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 200, 255, 256, 257, 1030]))
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(0, draw(st.sampled_from([0.5, 3.0, 30.0])), (n, v)) + draw(st.sampled_from([0.0, 50.0]))
    if draw(st.booleans()):
        x = np.round(x)
    x[rng.random((n, v)) < draw(st.sampled_from([0.0, 0.3, 0.99]))] = -np.inf
    x[np.arange(n), rng.integers(0, v, n)] = 1.0
    return x.astype(np.float32), rng.integers(0, v, n).astype(np.int32), min(v, draw(st.sampled_from([0, 1, 4, 20])))


@pytest.mark.parametrize("scorer", SCORERS)
@settings(max_examples=100, deadline=None)
@given(scored())
def test_scores_are_those_of_float64_and_sorting(scorer: Scorer, case: tuple[Floats, Ints, int]):
    x, targets, top = case
    assert_right(scorer(x, targets, top, True), x, targets, top)


@pytest.mark.parametrize("scorer", SCORERS)
def test_a_large_vocabulary_loses_no_precision(scorer: Scorer):
    """One float32 running sum over 152,000 equal terms would be off by 1e-3; ties go to the lower id throughout."""
    v = 152_000
    x = np.stack([np.zeros(v), np.random.default_rng(0).normal(0, 2, v)]).astype(np.float32)
    targets = np.array([v - 1, 77], np.int32)
    scores = scorer(x, targets, 20, True)
    assert_right(scores, x, targets, 20)
    assert scores.top_ids is not None
    assert scores.top_ids[0].tolist() == list(range(20))
    assert scores.ranks is not None
    assert scores.ranks[0] == v


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("offset", [1e3, -1e4, 1e5])
def test_a_constant_added_to_all_logits_costs_no_digits(scorer: Scorer, offset: float):
    rng = np.random.default_rng(7)
    x, targets = (offset + 3 * rng.standard_normal((8, 1000))).astype(np.float32), rng.integers(0, 1000, 8).astype(np.int32)
    scores, (logp, ids, _, entropies) = scorer(x, targets, 3, True), oracle(x, targets, 3)
    assert scores.top_logprobs is not None
    assert scores.entropies is not None
    np.testing.assert_allclose(scores.logprobs, logp[np.arange(8), targets], rtol=0, atol=3e-6)
    np.testing.assert_allclose(scores.top_logprobs, np.take_along_axis(logp, ids.astype(np.int64), axis=1), rtol=0, atol=3e-6)
    np.testing.assert_allclose(scores.entropies, entropies, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scorer", SCORERS)
def test_equals_across_blocks_go_to_the_lower_id(scorer: Scorer):
    x = np.zeros((1, 5 * BLOCK + 3), np.float32)
    x[0, [BLOCK - 1, BLOCK, 4 * BLOCK, 5 * BLOCK + 2]] = 1.0
    scores = scorer(x, np.array([4 * BLOCK], np.int32), 6, True)
    assert scores.top_ids is not None
    assert scores.top_ids[0].tolist() == [BLOCK - 1, BLOCK, 4 * BLOCK, 5 * BLOCK + 2, 0, 1]
    assert scores.ranks is not None
    assert scores.ranks.tolist() == [3]


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("v", [12, BLOCK, 300])
@pytest.mark.filterwarnings("error")
def test_rows_without_numbers_come_out_as_nan_and_spare_the_others(scorer: Scorer, v: int):
    x = np.random.default_rng(1).normal(0, 1, (4, v)).astype(np.float32)
    x[1], x[2] = np.nan, -np.inf
    targets = np.zeros(4, np.int32)
    scores = scorer(x, targets, 5, True)
    np.testing.assert_array_equal(np.isnan(scores.logprobs), [False, True, True, False])
    assert_right(scores[np.array([0, 3])], x[[0, 3]], targets[:2], 5)


@pytest.mark.parametrize("scorer", SCORERS)
def test_a_target_of_minus_infinity_stays_minus_infinity(scorer: Scorer):
    x = np.array([[0.0, -np.inf, 0.0]], np.float32)
    scores = scorer(x, np.array([1], np.int32), 3, True)
    assert scores.logprobs.tolist() == [-np.inf]
    assert scores.top_ids is not None
    assert scores.top_ids.tolist() == [[0, 2, 1]]
    assert scores.ranks is not None
    assert scores.ranks.tolist() == [3]
    assert scores.entropies is not None
    np.testing.assert_allclose(scores.entropies, [np.log(2)], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_halves_are_cast_before_anything_is_subtracted(dtype: mx.Dtype):
    x = mx.array(np.random.default_rng(2).normal(20, 4, (6, 300)).astype(np.float32)).astype(dtype)
    targets = np.arange(6, dtype=np.int32)
    assert_right(logprobs.score(x, targets, 4, True), np.array(x.astype(mx.float32)), targets, 4)


def test_blocks_of_rows_are_one_result():
    v = 1 << 12
    n = 3 * BLOCK_BYTES // (4 * v) // 2  # one block and a half
    x = np.random.default_rng(3).normal(0, 3, (n, v)).astype(np.float32)
    targets = np.arange(n, dtype=np.int32)
    whole = by_numpy(x, targets, 3, True)
    assert len(whole.logprobs) == n
    last = by_numpy(x[-1:], targets[-1:], 3, True)
    for name in Scores.__slots__:
        np.testing.assert_array_equal(getattr(whole[-1:], name), getattr(last, name))


def test_no_tokens_have_no_scores():
    scores = by_numpy(np.zeros((0, 300), np.float32), np.zeros(0, np.int32), 4, True)
    assert scores.logprobs.shape == (0,)
    assert scores.top_ids is not None
    assert scores.top_ids.shape == (0, 4)


def test_figures_not_asked_for_are_none():
    x = mx.zeros((2, 7))
    scores = logprobs.join_scores([logprobs.score(x, np.zeros(2, np.int32))] * 2)
    assert scores.logprobs.shape == (4,)
    assert [name for name in Scores.__slots__ if getattr(scores, name) is not None] == ["logprobs"]
    assert logprobs.score(x, np.array([0, 6], np.int32), greedy=True).greedy.tolist() == [True, False]  # pyright: ignore[reportOptionalMemberAccess]


def by_fused(x: mx.array, targets: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    found = logprobs.fused(x, mx.array(targets))
    return np.array(found[0]), np.array(found[1])


@settings(max_examples=60, deadline=None)
@given(scored())
def test_fused_is_the_specification_with_ties_and_minus_infinity(case: tuple[Floats, Ints, int]):
    x, targets, _ = case
    found, greedy = by_fused(mx.array(x), targets)
    truth = by_specification(x, targets, 0, False)
    np.testing.assert_allclose(found, truth.logprobs, rtol=0, atol=3e-5)
    np.testing.assert_array_equal(greedy, truth.greedy)


@pytest.mark.parametrize(("dtype", "rounding"), [(mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 1e-2)])
def test_fused_takes_half_precision_and_targets_at_the_edges(dtype: mx.Dtype, rounding: float):
    """The CPU, where this runs, keeps the logits' precision in the sum; Metal and CUDA sum in float32."""
    x = mx.array(np.random.default_rng(4).normal(3, 4, (4, 1031)).astype(np.float32)).astype(dtype)
    targets = np.array([0, 1030, 0, 1030], np.int32)
    found, _ = by_fused(x, targets)
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, by_specification(np.array(x.astype(mx.float32)), targets, 0, False).logprobs, rtol=rounding, atol=1e-5
    )


def test_fused_gives_nan_where_the_specification_does():
    x = np.zeros((6, 5), np.float32)
    x[0], x[1, 2], x[2, 3], x[3, 1], x[4] = -np.inf, np.nan, np.inf, -np.inf, 3e38
    targets = np.array([0, 0, 0, 1, 2, 0], np.int32)
    found, _ = by_fused(mx.array(x), targets)
    truth = by_specification(x, targets, 0, False).logprobs
    np.testing.assert_array_equal(np.isnan(found), np.isnan(truth))
    np.testing.assert_array_equal(np.delete(found, 4), np.delete(truth, 4))
    # On the CPU and on Metal mlx adds the peak before it subtracts, and log 5 is nothing beside it; on CUDA it does not.
    assert found[4] == (truth[4] if backend.device_name() == "cuda" else 0)
    assert truth[4] == np.float32(-np.log(5))
    assert np.isnan(found[:3]).all()
    assert found[3] == -np.inf


def test_gpus_take_the_fused_way_for_logprobs_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logprobs, "on_cpu_path", lambda: False)
    x = np.random.default_rng(5).normal(0, 3, (3, 70)).astype(np.float32)
    targets = np.array([1, 69, int(x[2].argmax())], np.int32)
    for top, stats in ((0, False), (2, True)):
        scores = logprobs.score(mx.array(x), targets, top, stats, greedy=True)
        truth = by_numpy(x, targets, top, stats)
        np.testing.assert_allclose(scores.logprobs, truth.logprobs, rtol=0, atol=1e-5)
        assert scores.greedy is not None
        assert scores.greedy.tolist() == [False, False, True]
        assert (scores.ranks is None) == (not stats)
    assert logprobs.score(mx.array(x), targets).greedy is None


@pytest.mark.compiles
def test_the_top_logprobs_of_gpus_take_no_pass_each(monkeypatch: pytest.MonkeyPatch):
    """mx.compile traces the specification on arrays without values: any read of one on the host is an error."""
    v, widths = 100_000, []
    for name in ("sort", "argsort", "argmax"):
        own: Any = getattr(mx, name)
        monkeypatch.setattr(mx, name, lambda x, axis=-1, own=own, **more: widths.append(x.shape[axis]) or own(x, axis=axis, **more))
    x = np.random.default_rng(11).normal(0, 3, (2, v)).astype(np.float32)
    found = mx.compile(lambda x: logprobs.reference(x, mx.array([3, 4]), 20, False)[1])(mx.array(x))
    np.testing.assert_array_equal(found, np.argsort(-x, axis=1, kind="stable")[:, :20])
    assert max(widths) <= v // 10
