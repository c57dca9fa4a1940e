"""Tests statistics in closed form, and against slow loops that follow the formulas literally."""

import math
from statistics import mean, stdev

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.statistics.standard_errors import (
    bits_per_byte,
    clustered_error,
    list_sum,
    percentiles,
    perplexity,
    share_error,
    through_exp,
)

VALUES = st.floats(-20, 0, width=32)
DOCUMENTS = st.lists(st.lists(VALUES, max_size=6), max_size=8)


def sums_of(documents: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Σ values and their number, a document each."""
    return np.array([math.fsum(d) for d in documents], np.float64), np.array([len(d) for d in documents], np.int64)


@pytest.mark.parametrize("vocabulary", [2, 50257])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(vocabulary: int):
    assert perplexity(-7 * math.log(vocabulary), 7) == pytest.approx(vocabulary, rel=1e-12)


def test_nothing_scored_is_none_and_no_chance_is_infinity():
    assert perplexity(0.0, 0) is None
    assert perplexity(-math.inf, 3) == math.inf
    assert perplexity(-1e6, 1) == math.inf  # beyond float64
    assert perplexity(0.0, 3) == 1.0


def test_a_byte_that_is_one_of_256_takes_eight_bits():
    assert bits_per_byte(-10 * math.log(256), 10) == pytest.approx(8, rel=1e-14)
    assert bits_per_byte(0.0, 0) is None
    assert bits_per_byte(-math.inf, 3) == math.inf
    assert str(bits_per_byte(0.0, 3)) == "0.0"  # not -0.0


def test_the_clustered_error_by_hand():
    """Sums -1, -5 of 1 and 3 tokens: m = -1.5, residuals 0.5 and -0.5, sqrt(2/1 · 0.5) / 4."""
    sums, counts = np.array([-1.0, -5.0]), np.array([1, 3])
    assert clustered_error(sums, counts) == pytest.approx(0.25, rel=1e-15)


def test_documents_of_one_token_each_have_the_error_of_a_mean():
    values = [-1.0, -2.5, -0.25, -7.0, -1.5]
    assert clustered_error(*sums_of([[x] for x in values])) == pytest.approx(stdev(values) / math.sqrt(5), rel=1e-14)


@given(DOCUMENTS)
def test_the_clustered_error_is_that_of_a_naive_loop(documents: list[list[float]]):
    """Residuals are rounded relative to the sums: 1e-13 of 120."""
    full = [d for d in documents if d]
    found = clustered_error(*sums_of(documents))
    if len(full) < 2:
        assert found is None
        return
    m, total = mean(x for d in full for x in d), 0.0
    for d in full:
        total += (sum(d) - m * len(d)) ** 2
    expected = math.sqrt(len(full) / (len(full) - 1) * total) / sum(map(len, full))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.lists(st.tuples(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=5)), min_size=2, max_size=6))
def test_the_error_of_differences_is_the_paired_one(pairs: list[tuple[list[tuple[float, float]]]]):
    """Var(a − b) = Var a + Var b − 2 Cov(a, b), with variances and covariance of the ratio estimator."""
    documents = [document for (document,) in pairs]
    counts = np.array([len(d) for d in documents])
    a, b = (np.array([math.fsum(pair[side] for pair in d) for d in documents]) for side in (0, 1))
    apart_a, apart_b = (x - x.sum() / counts.sum() * counts for x in (a, b))
    scale = len(documents) / (len(documents) - 1) / counts.sum() ** 2
    variance = scale * ((apart_a**2).sum() + (apart_b**2).sum() - 2 * (apart_a * apart_b).sum())
    found = clustered_error(a - b, counts)
    assert found is not None
    assert found**2 == pytest.approx(variance, rel=1e-9, abs=1e-12)


def test_no_error_is_known_where_a_sum_is_infinite():
    sums, counts = np.array([-1.0, -math.inf, -3.0]), np.array([1, 2, 3])
    assert clustered_error(sums, counts) is None


def test_equal_values_have_no_error():
    sums, counts = np.array([-2.0, -6.0, -4.0]), np.array([1, 3, 2])
    assert clustered_error(sums, counts) == 0.0


def test_the_error_goes_through_exp_by_the_delta_method():
    assert through_exp(20.0, 0.1) == 2.0
    assert through_exp(None, 0.1) is None
    assert through_exp(20.0, None) is None
    assert through_exp(math.inf, 0.1) is None


@pytest.mark.parametrize(("hits", "of"), [(0, 2), (1, 2), (3, 7), (7, 7)])
def test_the_error_of_a_share_is_the_sample_deviation_over_the_root(hits: int, of: int):
    assert share_error(hits, of) == pytest.approx(stdev([1.0] * hits + [0.0] * (of - hits)) / math.sqrt(of), rel=1e-14)


def test_one_row_gives_a_share_no_error():
    assert share_error(1, 1) is None
    assert share_error(0, 0) is None


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_percentiles_are_numpys_linear_ones(values: list[float], at: list[float]):
    found = percentiles(np.array(values, np.float32), tuple(at))
    np.testing.assert_allclose(np.array(found, np.float64), np.percentile(np.array(values, np.float64), at), rtol=1e-9, atol=1e-6)


def test_percentiles_by_hand():
    values = np.array([4.0, 1.0, 3.0, 2.0, math.inf], np.float32)
    assert percentiles(values, (0, 12.5, 50, 75, 76, 100)) == [1.0, 1.5, 3.0, 4.0, math.inf, math.inf]
    assert percentiles(np.zeros(0, np.float32), (0, 50)) == [None, None]
    assert percentiles(np.full(3, math.inf, np.float32), (1, 99)) == [math.inf, math.inf]


def test_lists_are_summed_in_float64_without_their_nulls():
    lists = pa.array([[None, 0.5], [], None, [0.25, 1e8]], pa.list_(pa.float32()))
    assert list_sum(lists) == (1e8 + 0.75, 3)  # float32 would drop the 0.75
    assert list_sum(pa.chunked_array([lists, lists])) == (2e8 + 1.5, 6)
    assert list_sum(pa.chunked_array([], pa.list_(pa.float32()))) == (0.0, 0)
    assert list_sum(lists.slice(3)) == (float(np.float32(1e8)) + 0.25, 2)
