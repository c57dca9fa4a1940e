"""Tests the report's bins: exact counts for any batches, and histograms that state what they leave out."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.report_data.bins import Bins

FLOATS = st.lists(st.integers(-60_000, 60_000).map(lambda value: value / 1000), max_size=200)  # no bin's edge is missed by rounding


@given(FLOATS, st.integers(0, 200))
def test_batches_do_not_matter(values: list[float], cut: int):
    whole, parts = Bins(-50.0, 0.5, 50.0), Bins(-50.0, 0.5, 50.0)
    whole.add(np.array(values))
    parts.add(np.array(values[cut:]))
    parts.add(np.array(values[:cut]))
    assert whole.counts.sum() == len(values)
    n = max(len(whole.counts), len(parts.counts))
    assert np.array_equal(np.pad(whole.counts, (0, n - len(whole.counts))), np.pad(parts.counts, (0, n - len(parts.counts))))
    assert whole.total == pytest.approx(math.fsum(values), abs=1e-9)


@given(FLOATS.filter(bool))
def test_a_histogram_holds_every_value_or_counts_it(values: list[float]):
    bins = Bins(-100.0, 0.25, 100.0)
    bins.add(np.array(values))
    found = bins.histogram()
    assert sum(bar.count for bar in found.bars) + found.below + found.above == len(values)
    assert len(found.bars) <= 74
    if found.bars[0].value is not None:
        assert {bar.value: bar.count for bar in found.bars} == Counter(values)
        assert all(a.end < b.start for a, b in pairwise(found.bars))
        return
    assert all(a.end == pytest.approx(b.start) for a, b in zip(found.bars, found.bars[1:], strict=False))
    inside = [value for value in values if found.bars[0].start <= value < found.bars[-1].end]
    assert len(inside) == sum(bar.count for bar in found.bars)
    for bar in found.bars:
        assert bar.count == sum(bar.start <= value < bar.end for value in values)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_quantiles_of_integers_are_exact(values: list[int], share: float):
    bins = Bins(0.0, 1.0, 1 << 20, whole=True)
    bins.add(np.array(values))
    assert bins.quantile(share) == np.quantile(values, share, method="inverted_cdf")


def test_infinite_values_are_counted_separately():
    bins = Bins(0.0, 0.1, 10.0)
    bins.add(np.array([1.0, np.inf, np.nan, -np.inf, 3.0]))
    assert (bins.count, bins.infinite, bins.mean) == (2, 3, 2.0)


def test_values_beyond_the_ends_count_at_the_ends():
    bins = Bins(0.0, 1.0, 10.0)
    bins.add(np.array([-5.0, 0.5, 1e9]))
    assert bins.counts.tolist() == [2, *[0] * 8, 1]


def test_a_far_tail_does_not_press_the_others_into_a_line():
    bins = Bins(0.0, 1.0, 1 << 20, whole=True)
    bins.add(np.concatenate([np.arange(100).repeat(100), [900_000]]))
    found = bins.histogram()
    assert found.above == 1
    assert found.bars[-1].end <= 101
    assert bins.quantile(1.0) == 900_000


def test_nothing_gives_nothing():
    bins = Bins(0.0, 1.0, 10.0)
    bins.add(np.zeros(0))
    assert (bins.mean, bins.quantile(0.5), bins.histogram().bars) == (None, None, [])


def test_few_values_have_a_bar_each():
    rewards = Bins(-100.0, 1 / 64, 100.0)
    rewards.add(np.array([0.0, 1.0, 1.0]))
    rewards.add(np.array([1.0, 0.5]))
    assert [(bar.value, bar.count) for bar in rewards.histogram().bars] == [(0.0, 1), (0.5, 1), (1.0, 3)]
    nothing = Bins(-1.0, 0.01, 1.0)
    nothing.add(np.zeros(7))
    (bar,) = nothing.histogram().bars
    assert (bar.value, bar.count, bar.start) == (0.0, 7, -bar.end)


def test_many_or_distant_values_have_no_bars_of_their_own():
    for values in (np.arange(17.0), np.array([0.0, 1.0, 17.0])):
        bins = Bins(0.0, 1.0, 1 << 20, whole=True)
        bins.add(values)
        assert {bar.value for bar in bins.histogram().bars} == {None}
        assert sum(bar.count for bar in bins.histogram().bars) == len(values)


def test_a_mirrored_histogram_has_the_other_sign():
    bins = Bins(0.0, 0.5, 10.0)
    bins.add(np.array([0.1, 0.2, 3.1]))
    found = bins.histogram().mirrored
    assert (found.bars[-1].end, found.bars[-1].count) == (0.0, 2)
    assert found.bars[0].start <= -3.1 < found.bars[0].end
