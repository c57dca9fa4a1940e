"""Tests both samplers, the specification and the CPU's, against a slow oracle of the order of sampling."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw as sampling
from mlx_bulk.kernels.sampling.logits_processors import Edits
from mlx_bulk.runner.core.requests import Sampling

from ...oracle import assert_frequencies, chi_square_bound, distribution, edited
from .samplers import WAYS, Way, decided, parameters
from .sampling_variants import (
    COMPLETION,
    EOS,
    LAST,
    LIBRARY,
    LOGITS,
    PLAIN,
    PROMPT,
    REFERENCE,
    SAMPLERS,
    VARIANTS,
    Floats,
    Sampler,
    by_numpy,
    edits_of,
    uniforms,
)


@pytest.mark.parametrize("sampler", [REFERENCE, pytest.param(by_numpy, id="numpy", marks=pytest.mark.slow), LIBRARY])
@pytest.mark.parametrize("name", VARIANTS)
def test_frequencies_follow_the_order_of_sampling(name: str, sampler: Sampler):
    n, s = 20_000, VARIANTS[name]
    expected = distribution(edited(LOGITS.tolist(), s, PROMPT, COMPLETION, EOS), s)
    edits = edits_of(s, n, PROMPT, COMPLETION, EOS) if s.edits else None
    ids, under = sampler(np.tile(LOGITS, (n, 1)), parameters([s] * n, uniforms(n, seed=17), edits))
    assert_frequencies(ids, expected)
    np.testing.assert_allclose(under, np.log(expected[ids]), rtol=0, atol=1e-5)  # float32 exp and sums of twelve terms


def test_the_frequency_test_notices_another_order():
    """Penalties after the temperature, or top-p before top-k, are other distributions."""
    s = replace(PLAIN, temperature=1.4, top_k=3, top_p=0.5)
    swapped = distribution(np.log(np.maximum(distribution(LOGITS.tolist(), replace(s, top_k=0)), 1e-300)).tolist(), replace(PLAIN, top_k=3))
    n = 20_000
    ids, _ = by_numpy(np.tile(LOGITS, (n, 1)), parameters([s] * n, uniforms(n, seed=17)))
    with pytest.raises(AssertionError):
        assert_frequencies(ids, swapped)
    late = Sampling(temperature=0.4, presence_penalty=1.2 * 0.4)
    ids, _ = by_numpy(np.tile(LOGITS, (n, 1)), parameters([late] * n, uniforms(n, seed=17), edits_of(late, n, [], COMPLETION, [])))
    early = Sampling(temperature=0.4, presence_penalty=1.2)
    with pytest.raises(AssertionError):
        assert_frequencies(ids, distribution(edited(LOGITS.tolist(), early, [], COMPLETION), early))


@pytest.mark.parametrize(("degrees", "exact"), [(1, 15.14), (5, 25.74), (11, 37.37), (30, 67.63)])
def test_the_chi_square_bound_lies_a_little_above_the_table(degrees: int, exact: float):
    assert 1 <= chi_square_bound(degrees) / exact < 1.08  # exact: the 0.9999 quantile; the approximation is loosest at 1 degree


@st.composite
def rows(draw: st.DrawFn) -> tuple[Floats, Sampling]:
    """Logits [V] with ties and -inf, V around the block's size, and filters."""
    v = draw(st.sampled_from([1, 2, 3, 17, 63, 64, 65, 255, 256, 257, 600]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(0, draw(st.sampled_from([0.5, 3.0])), v)
    if draw(st.booleans()):
        x = np.round(x * 2) / 2
    x[rng.random(v) < draw(st.sampled_from([0.0, 0.3, 0.9]))] = -np.inf
    x[rng.integers(v)] = 1.0
    s = Sampling(
        temperature=draw(st.sampled_from([0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, 64, 10_000])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.03, 0.4, 1.0])),
        typical_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.05])),
        xtc_probability=draw(st.sampled_from([0.0, 0.0, 1.0])),
        xtc_threshold=draw(st.sampled_from([0.01, 0.1, 0.3])),
    )
    return x.astype(np.float32), s


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(max_examples=60, deadline=None)
@given(rows())
def test_the_middle_of_each_kept_token_draws_it(sampler: Sampler, row: tuple[Floats, Sampling]):
    """u in the middle of a token's share of the CDF draws that token with its probability; so the kept set is the oracle's."""
    x, s = row
    p = distribution(x.tolist(), s)
    assume(decided(x, s))
    kept = np.flatnonzero(p > 1e-5)  # narrower shares than float32 sums resolve are left out
    ends = np.cumsum(p)
    u = np.concatenate([(ends - p / 2)[kept], [0.0, LAST]])
    ids, under = sampler(np.tile(x, (len(u), 1)), parameters([s] * len(u), u))
    np.testing.assert_array_equal(ids[:-2], kept)
    assert (p[ids] > 0).all()
    assert ends[ids[-2]] - p[ids[-2]] <= 1e-5
    assert ends[ids[-1]] >= 1 - 1e-5
    np.testing.assert_allclose(under, np.log(p[ids]), rtol=0, atol=3e-5)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(3, 1.0, 3), (0, 0.5, 4), (0, 0.51, 5), (6, 0.5, 3), (0, 1.0, 8), (20, 0.125, 1)])
def test_ties_at_the_cut_go_to_the_lower_ids(sampler: Sampler, top_k: int, top_p: float, kept: int):
    s = Sampling(top_k=top_k, top_p=top_p)
    ids, under = sampler(np.zeros((8, 8), np.float32), parameters([s] * 8, (np.arange(8) + 0.5) / 8))
    assert set(ids.tolist()) == set(range(kept))
    np.testing.assert_allclose(under, -np.log(kept), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_xtc_takes_part_in_its_share_of_steps(sampler: Sampler):
    """Where a row's number is below the probability; the draw's own number stays what it was."""
    s, n = Sampling(xtc_probability=0.25, xtc_threshold=0.1), 20_000
    coins = uniforms(n, seed=23)
    u = uniforms(n, seed=24)
    ids, under = sampler(np.tile(LOGITS, (n, 1)), parameters([s] * n, u, coins=coins))
    plain, plain_under = sampler(np.tile(LOGITS, (n, 1)), parameters([PLAIN] * n, u))
    on = coins < 0.25
    np.testing.assert_array_equal(ids[~on], plain[~on])
    np.testing.assert_allclose(under[~on], plain_under[~on], rtol=0, atol=1e-6)
    p = distribution(LOGITS.tolist(), s)
    assert_frequencies(ids[on], p)
    np.testing.assert_allclose(under[on], np.log(p[ids[on]]), rtol=0, atol=1e-5)
    assert_frequencies(ids, 0.25 * p + 0.75 * distribution(LOGITS.tolist(), PLAIN))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_equals_of_the_least_top_choice_stay(sampler: Sampler):
    x = np.log(np.array([[0.4, 0.2, 0.2, 0.15, 0.05]], np.float32))
    s = Sampling(xtc_probability=1.0, xtc_threshold=0.18)
    ids, _ = sampler(np.tile(x, (100, 1)), parameters([s] * 100, (np.arange(100) + 0.5) / 100))
    assert set(ids.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_typical_tokens_that_are_level_go_to_the_lower_ids(sampler: Sampler):
    ids, under = sampler(np.zeros((8, 8), np.float32), parameters([Sampling(typical_p=0.5)] * 8, (np.arange(8) + 0.5) / 8))
    assert set(ids.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(under, -np.log(4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_typical_p_can_leave_out_the_likeliest_token(sampler: Sampler):
    p = np.array([0.5, *[0.5 / 40] * 40])  # its surprise is 0.7 nats, the others' 4.4; the entropy is 2.5, so they are nearer
    p[1:21] *= 1.6
    p[21:] *= 0.4
    x = np.log(p)[None].astype(np.float32)
    truth = distribution(x[0].tolist(), Sampling(typical_p=0.31))
    assert truth[0] == 0
    ids, _ = sampler(np.tile(x, (200, 1)), parameters([Sampling(typical_p=0.31)] * 200, (np.arange(200) + 0.5) / 200))
    assert set(ids.tolist()) == set(np.flatnonzero(truth).tolist())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_greedy_takes_the_lowest_of_equals_after_the_edits(sampler: Sampler):
    greedy = Sampling(temperature=0.0, top_k=1, logit_bias={2: -1.0, 9: 1.1})
    x = np.tile(LOGITS, (2, 1))
    ids, under = sampler(x, parameters([greedy, replace(greedy, logit_bias={})], [0.5, 0.5], Edits(
        np.array([0, 0], np.int32), np.array([2, 9], np.int32), np.array([-1.0, 1.1], np.float32))))  # fmt: skip
    assert ids.tolist() == [6, 2]  # in row 0 the bias takes the tie from 2
    assert under.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(x, np.tile(LOGITS, (2, 1)))  # the model's logits stay for their logprobs


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_of_one_batch_keep_their_own_parameters(sampler: Sampler):
    variants = [s for s in VARIANTS.values() if not s.edits] + [Sampling(temperature=0.0)]
    rng = np.random.default_rng(3)
    x = rng.normal(0, 2, (len(variants) * 20, 300)).astype(np.float32)
    every, u = variants * 20, uniforms(len(x), seed=5)
    ids, under = sampler(x, parameters(every, u))
    for i, s in enumerate(every):
        alone, under_alone = sampler(x[i : i + 1], parameters([s], u[i : i + 1]))
        assert alone[0] == ids[i]
        np.testing.assert_allclose(under_alone[0], under[i], rtol=0, atol=1e-6)  # sums of another shape


V = 152_000
OUTER = 10


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("shape", ["flat", "normal", "steep"])
@pytest.mark.parametrize("masked_by", ["model", "bias"])
def test_the_draw_is_right_at_a_large_vocabulary(sampler: Sampler, shape: str, masked_by: str):
    """The outermost ids are masked; u at both ends and between falls within its token's share of the CDF in float64."""
    x = np.random.default_rng(0).normal(0, {"flat": 0.0, "normal": 1.0, "steep": 8.0}[shape], V).astype(np.float32)
    outer = np.r_[0:OUTER, V - OUTER : V].astype(np.int32)
    truth = x.astype(np.float64)
    truth[outer] = -np.inf
    u = np.concatenate([np.array([0.0, LAST], np.float32), uniforms(6, seed=2)])
    edits = None
    if masked_by == "model":
        x[outer] = -np.inf
    else:
        edits = Edits(
            np.repeat(np.arange(len(u), dtype=np.int32), len(outer)),
            np.tile(outer, len(u)),
            np.full(len(u) * len(outer), -np.inf, np.float32),
        )
    ids, under = sampler(np.tile(x, (len(u), 1)), parameters([PLAIN] * len(u), u, edits))
    p = np.exp(truth - truth.max())
    p /= p.sum()
    ends = np.cumsum(p)
    assert (p[ids] > 0).all()
    near = 1e-6 if sampler is by_numpy else 1e-5  # exp in float32, sums in float64; all in float32 by blocks
    assert (ends[ids] - p[ids] <= u + near).all()
    assert (ends[ids] >= u - near).all()
    assert ids[0] == OUTER
    assert V - OUTER > ids[1] >= (V - OUTER - 3 if shape == "flat" else 0)
    np.testing.assert_allclose(under, np.log(p[ids]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 255, 256, 257, 1000]), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_token_of_probability_zero_is_never_drawn(sampler: Sampler, seed: int, v: int, masked: float):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (3, v)).astype(np.float32)
    x[rng.random((3, v)) < masked] = -np.inf
    x[np.arange(3), rng.integers(0, v, 3)] = rng.choice([-200.0, 0.0, 5.0], 3)
    ids, under = sampler(x, parameters([PLAIN] * 3, [0.0, LAST, rng.random(dtype=np.float32)]))
    assert np.isfinite(x[np.arange(3), ids]).all()
    assert np.isfinite(under).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("s", [PLAIN, Sampling(temperature=0.0), Sampling(top_k=3, top_p=0.9, min_p=0.1)])
@pytest.mark.filterwarnings("error")
def test_a_row_of_nan_does_not_touch_other_rows(sampler: Sampler, s: Sampling):
    x = np.tile(LOGITS, (4, 1))
    x[1], x[2] = np.nan, -np.inf
    u = uniforms(4, seed=9)
    ids, under = sampler(x, parameters([s] * 4, u))
    fine = [0, 3]
    alone, under_alone = sampler(x[fine], parameters([s] * 2, u[fine]))
    np.testing.assert_array_equal(ids[fine], alone)
    np.testing.assert_array_equal(under[fine], under_alone)
    assert ((ids >= 0) & (ids < len(LOGITS))).all()
    _, scores = sampling.launch(mx.array(x), parameters([s] * 4, u), 2, True).read()
    np.testing.assert_array_equal(np.isnan(scores.logprobs), [False, True, True, False])


def test_greedy_rows_that_are_not_scored_take_no_sums(monkeypatch: pytest.MonkeyPatch):
    logits, greedy = mx.random.normal((3, 500)), parameters([Sampling(temperature=0.0)] * 3, [0.5] * 3)
    scored, _ = sampling.launch(logits, greedy).read()
    monkeypatch.setattr(logprobs, "softmax_sums", lambda x: pytest.fail("nobody asked for it"))  # pyright: ignore[reportUnknownLambdaType]
    drawn, scores = sampling.launch(logits, greedy, scored=False).read()
    np.testing.assert_array_equal(drawn.ids, scored.ids)
    np.testing.assert_array_equal(scores.logprobs, drawn.sampled)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_of_several_positions_the_last_is_drawn(temperature: float):
    logits, p = mx.random.normal((3, 2, 50)), parameters([Sampling(temperature=temperature)] * 3, [0.1, 0.5, 0.9])
    for own in (logits, logits[:, 1:]):
        drawn, scores = sampling.launch(own, p, top=2).read()
        truth, figures = sampling.launch(logits[:, -1], p, top=2).read()
        np.testing.assert_array_equal(drawn.ids, truth.ids)
        np.testing.assert_array_equal(scores.logprobs, figures.logprobs)


def test_draw_gives_model_logprobs_and_sampled_logprobs():
    s = replace(VARIANTS["everything"], min_tokens=0)
    n = 50
    edits = edits_of(s, n, PROMPT, COMPLETION, EOS)
    x = np.tile(LOGITS, (n, 1))
    drawn, scores = sampling.launch(mx.array(x), parameters([s] * n, uniforms(n, seed=4), edits), top=2, stats=True).read()
    ids, under = drawn.ids, drawn.sampled
    own, under_all = distribution(LOGITS.tolist(), PLAIN), distribution(edited(LOGITS.tolist(), s, PROMPT, COMPLETION, EOS), s)
    np.testing.assert_allclose(scores.logprobs, np.log(own[ids]), rtol=0, atol=1e-5)
    np.testing.assert_allclose(under, np.log(under_all[ids]), rtol=0, atol=1e-5)
    assert scores.top_ids is not None
    assert scores.top_ids.tolist() == [[2, 6]] * n


@pytest.mark.parametrize("way", WAYS)
def test_the_only_token_that_filters_leave_has_logprob_0(way: Way):
    """Also where it is not the likeliest: XTC leaves the last of two."""
    second = np.linspace(-1.5, -0.1, 50, dtype=np.float32)
    x = np.stack([np.zeros_like(second), second, np.full_like(second, -np.inf)], axis=1)
    drawn = way(x, parameters([Sampling(xtc_probability=1.0)] * len(x), np.full(len(x), 0.5)))
    assert drawn.ids.tolist() == [1] * len(x)
    assert drawn.sampled.tolist() == [0.0] * len(x)
