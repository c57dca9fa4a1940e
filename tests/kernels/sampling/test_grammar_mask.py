"""Tests grammar masks in all three ways against a definition in float64 from a dense mask."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import logprobs, native
from mlx_bulk.kernels.sampling import draw as sampling
from mlx_bulk.kernels.sampling.draw import Drawn
from mlx_bulk.kernels.sampling.grammar_mask import Allowed
from mlx_bulk.kernels.sampling.logits_processors import Edits
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

from ...oracle import distribution, edited
from .samplers import WAYS, Floats, Way, by_library, by_numpy, by_specification, decided, parameters

Marks = NDArray[np.bool_]
GREEDY, PLAIN, FILTERED = Sampling(temperature=0.0), Sampling(), Sampling(temperature=0.7, top_k=9, top_p=0.9, min_p=0.02)
SETTINGS = [GREEDY, PLAIN, FILTERED, Sampling(temperature=1.6), Sampling(top_p=0.8), Sampling(min_p=0.1), Sampling(top_k=3),
            Sampling(typical_p=0.7), Sampling(xtc_probability=1.0, xtc_threshold=0.08)]  # fmt: skip


def packed(rows: list[int], marks: Marks, beyond: int = 1) -> Allowed:
    """Packs marks [K, V]. ``beyond``: the bit of the ids behind the last, which no draw may look at."""
    k, v = marks.shape
    padded = np.full((k, -(-v // 32) * 32), beyond, np.uint8)
    padded[:, :v] = marks
    return Allowed(np.array(rows, np.int32), np.packbits(padded, axis=1, bitorder="little").view("<i4").astype(np.int32))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Floats, list[Sampling], list[int], Marks, int]:
    """Logits [B, V], each row's settings, the rows with a mask, the ids that they allow, and a seed."""
    b, v = draw(st.integers(1, 5)), draw(st.sampled_from([1, 31, 32, 33, 64, 100, 257, 600]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 2, (b, v))
    if draw(st.booleans()):
        x = np.round(x)
    rows = sorted(draw(st.sets(st.integers(0, b - 1), min_size=1)))
    marks = rng.random((len(rows), v)) < draw(st.sampled_from([0.0, 0.03, 0.5, 0.95, 1.0]))
    marks[np.arange(len(rows)), rng.integers(0, v, len(rows))] = True
    return x.astype(np.float32), [draw(st.sampled_from(SETTINGS)) for _ in range(b)], rows, marks, seed


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(batches(), st.booleans())
def test_a_masked_draw_is_the_definitions(way: Way, batch: tuple[Floats, list[Sampling], list[int], Marks, int], biased: bool):
    """Each row's uniform lies in the middle of a token's share in float64: that token is drawn, with its probability."""
    x, rows, masked, marks, seed = batch
    (b, v), rng = x.shape, np.random.default_rng(seed + 1)
    dense = np.ones((b, v), np.bool_)
    dense[masked] = marks
    bias = {int(i): 1.5 for i in rng.integers(0, v, 3)} if biased else {}
    edits = Edits(np.repeat(np.arange(b, dtype=np.int32), len(bias)), np.tile(np.array(list(bias), np.int32), b),
                  np.full(b * len(bias), 1.5, np.float32)) if bias else None  # fmt: skip
    uniforms, ids, probabilities, left = np.zeros(b), np.zeros(b, int), np.zeros(b), []
    for i, s in enumerate(rows):
        logits = np.where(dense[i], edited(x[i].astype(np.float64).tolist(), Sampling(logit_bias=bias)), -np.inf).tolist()
        p = distribution(logits, s)
        assume(decided(np.array(logits), s))
        ids[i] = rng.choice(np.flatnonzero(p > 1e-4))
        uniforms[i], probabilities[i] = np.cumsum(p)[ids[i]] - p[ids[i]] / 2, p[ids[i]]
        left.append(np.flatnonzero(p) if s.filters or s.temperature == 0 else None)
    drawn = way(x, parameters(rows, uniforms, edits, packed(masked, marks)))
    np.testing.assert_array_equal(drawn.ids, ids)
    np.testing.assert_allclose(drawn.sampled, np.log(probabilities), rtol=0, atol=1e-5)
    assert drawn.kept is not None
    for found, truth in zip(drawn.kept, left, strict=True):
        np.testing.assert_array_equal(found, truth)
    for i, j in zip(masked, marks.sum(axis=1), strict=True):
        assert j > 1 or drawn.sampled[i] == 0  # exactly, where one id is allowed


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=30, deadline=None)
@given(batches())
def test_rows_without_a_mask_keep_their_bits(way: Way, batch: tuple[Floats, list[Sampling], list[int], Marks, int]):
    x, rows, masked, marks, seed = batch
    u = np.random.default_rng(seed).random(len(x), np.float32)
    with_masks, without = way(x, parameters(rows, u, allowed=packed(masked, marks))), way(x, parameters(rows, u))
    others = np.setdiff1d(np.arange(len(x)), masked)
    for name in ("ids", "sampled", "tempered"):
        np.testing.assert_array_equal(getattr(with_masks, name)[others], getattr(without, name)[others])
    assert with_masks.kept is not None
    assert without.kept is not None
    for i in others:
        np.testing.assert_array_equal(with_masks.kept[i], without.kept[i])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("s", SETTINGS)
@pytest.mark.parametrize("v", [33, 600])
def test_ids_behind_the_last_are_never_drawn(way: Way, s: Sampling, v: int):
    x = np.random.default_rng(v).normal(0, 2, (4, v)).astype(np.float32)
    marks = np.zeros((4, v), np.bool_)
    marks[:, v - 1] = True  # the last word's other bits are 1 as well
    drawn = way(x, parameters([s] * 4, [0, 0.3, 0.6, 1 - 2.0**-24], allowed=packed([0, 1, 2, 3], marks)))
    assert drawn.ids.tolist() == [v - 1] * 4
    assert drawn.sampled.tolist() == [0.0] * 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("s", SETTINGS)
def test_an_infinite_bias_or_penalties_bring_nothing_back(way: Way, s: Sampling):
    x = np.random.default_rng(2).normal(0, 1, (2, 70)).astype(np.float32)
    marks = np.zeros((1, 70), np.bool_)
    marks[0, [5, 40, 69]] = True
    one, two = np.array([1], np.int32), np.array([33, 33], np.int32)
    edits = Edits(one, two[:1], np.array([np.inf], np.float32), np.array([1, 1], np.int32), two, np.array([1, 1], np.int32), two)
    penalised = replace(s, repetition_penalty=0.5, presence_penalty=-9.0, frequency_penalty=-9.0)
    for u in (0.0, 0.5, 0.99):
        drawn = way(x, parameters([s, penalised], [u, u], edits, packed([1], marks)))
        assert drawn.ids[1] in (5, 40, 69)
        assert np.isfinite(drawn.sampled).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("s", SETTINGS)
@pytest.mark.filterwarnings("error")
def test_a_row_from_which_nothing_can_be_drawn_is_marked(way: Way, s: Sampling):
    """An empty mask, allowed logits that are all -inf, one allowed NaN; the rows beside them are drawn."""
    x = np.random.default_rng(3).normal(0, 1, (5, 45)).astype(np.float32)
    marks = np.zeros((4, 45), np.bool_)
    marks[1:, [7, 40]] = True
    x[2, [7, 40]], x[3, 40], x[4, 3] = -np.inf, np.nan, np.nan  # the last row's NaN is not allowed
    u = np.full(5, 0.4, np.float32)
    drawn = way(x, parameters([s] * 5, u, allowed=packed([1, 2, 3, 4], marks)))
    assert np.isnan(drawn.sampled).tolist() == [False, True, True, True, False]
    assert ((drawn.ids >= 0) & (drawn.ids < 45)).all()
    assert drawn.ids[4] in (7, 40)
    assert drawn.ids[0] == way(x[:1], parameters([s], u[:1])).ids[0]
    assert drawn.kept is not None
    assert [None if ids is None else len(ids) for ids in drawn.kept[1:4]] == [0 if s.filters or s is GREEDY else None] * 3


@pytest.mark.parametrize("way", WAYS)
def test_a_greedy_tie_goes_to_the_lower_allowed_id(way: Way):
    x = np.zeros((2, 300), np.float32)
    marks = np.zeros((2, 300), np.bool_)
    marks[0, [70, 71, 299]], marks[1, [288, 299]] = True, True
    drawn = way(x, parameters([GREEDY] * 2, [0.5] * 2, allowed=packed([0, 1], marks)))
    assert drawn.ids.tolist() == [70, 288]
    assert drawn.sampled.tolist() == [0.0, 0.0]
    assert [np.asarray(ids).tolist() for ids in drawn.kept or ()] == [[70], [288]]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("s", SETTINGS)
def test_scores_stay_the_models_own(monkeypatch: pytest.MonkeyPatch, device: str, s: Sampling):
    monkeypatch.setattr(sampling, "on_cpu_path", lambda: device == "cpu")
    rng = np.random.default_rng(6)
    x = rng.normal(0, 2, (3, 90)).astype(np.float32)
    allowed = packed([0, 2], rng.random((2, 90)) < 0.2)
    p = parameters([s] * 3, [0.2, 0.5, 0.8], allowed=allowed)
    drawn, scores = sampling.launch(mx.array(x), p, top=4, stats=True, tempered=True).read()
    own = logprobs.score(mx.array(x), drawn.ids, 4, True)
    for name in ("logprobs", "top_logprobs", "entropies"):
        np.testing.assert_allclose(getattr(scores, name), getattr(own, name), rtol=0, atol=1e-6)
    for name in ("top_ids", "ranks"):
        np.testing.assert_array_equal(getattr(scores, name), getattr(own, name))
    heat = s.temperature or 1.0
    below = x.astype(np.float64) / heat
    truth = below[np.arange(3), drawn.ids] - np.log(np.exp(below).sum(axis=1))
    np.testing.assert_allclose(drawn.tempered, truth, rtol=0, atol=1e-5)  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")
@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("s", [GREEDY, PLAIN, Sampling(top_p=0.95), Sampling(top_k=50, min_p=1e-3)])
def test_the_three_ways_agree_at_a_large_vocabulary(s: Sampling, scored: bool):
    v, rng = 50_257, np.random.default_rng(8)
    x = rng.normal(0, 2, (4, v)).astype(np.float32)
    x[:, -v % 32 :: 7] += 4
    marks = np.stack([rng.random(v) < 0.9, rng.random(v) < 0.001, np.arange(v) > v - 3])
    p = parameters([s] * 4, rng.random(4, np.float32), allowed=packed([0, 1, 3], marks))
    found = sampling.launch(mx.array(x), p, kept=True, scored=scored).read()[0]
    for truth in (by_numpy(x, p), by_specification(x, p)):
        np.testing.assert_array_equal(found.ids, truth.ids)
        np.testing.assert_allclose(found.sampled, truth.sampled, rtol=0, atol=1e-5)


def test_the_logits_stay_as_they_are():
    x = np.random.default_rng(9).normal(0, 1, (2, 50)).astype(np.float32)
    before = x.copy()
    p = parameters([PLAIN, GREEDY], [0.5, 0.5], allowed=packed([0, 1], np.arange(50) % 5 == np.array([[0], [1]])))
    drawn: list[Drawn] = [by_specification(x, p), by_numpy(x, p), by_library(x, p)]
    assert len({tuple(one.ids.tolist()) for one in drawn}) == 1
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [([0], 1, "expected int32 \\[1, 2\\]"), ([0, 0], 2, "ascending"), ([2], 2, "below 2"), ([-1], 2, "ascending")],
)
def test_a_mask_that_does_not_fit_is_refused(way: Way, rows: list[int], words: int, message: str):
    allowed = Allowed(np.array(rows, np.int32), np.full((len(rows), words), -1, np.int32))
    with pytest.raises(ValueError, match=message):
        way(np.zeros((2, 40), np.float32), parameters([GREEDY] * 2, [0.5] * 2, allowed=allowed))


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("s", [GREEDY, PLAIN])
def test_the_best_allowed_id_is_found_in_whatever_part_of_a_row(s: Sampling, scored: bool):
    """The best of all is masked; the best allowed one lies before it, behind it, twice, or is a NaN."""
    v, marks = 1100, np.zeros((5, 1100), np.bool_)
    x = np.random.default_rng(4).normal(0, 1, (5, v)).astype(np.float32)
    x[:, 500] = 90
    marks[:, ::7] = True
    marks[:, 500] = False
    x[0, 7], x[1, 1099], x[2, [259, 1050]], x[3, 700], x[4, 3] = 60, 60, 60, np.nan, np.nan
    x[4, 1050], marks[4, 3] = 60, False
    marks[1, 1099] = True
    drawn, _ = sampling.launch(mx.array(x), parameters([s] * 5, [0.1] * 5, allowed=packed([0, 1, 2, 3, 4], marks)), scored=scored).read()
    assert drawn.ids[[0, 1, 2, 4]].tolist() == [7, 1099, 259, 1050]
    assert np.isnan(drawn.sampled).tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("way", WAYS)
def test_masks_of_no_row_change_nothing(way: Way):
    x = np.random.default_rng(5).normal(0, 1, (2, 40)).astype(np.float32)
    none = Allowed(np.zeros(0, np.int32), np.zeros((0, 2), np.int32))
    found, truth = (way(x, parameters([PLAIN, GREEDY], [0.3, 0.6], allowed=allowed)) for allowed in (none, None))
    np.testing.assert_array_equal(found.ids, truth.ids)
    np.testing.assert_array_equal(found.sampled, truth.sampled)
