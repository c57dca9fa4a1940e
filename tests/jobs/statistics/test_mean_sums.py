"""Means added up document by document: their errors are those of the formulas over all documents at once."""

import math
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.statistics.mean_sums import MeanSums
from mlx_bulk.jobs.statistics.standard_errors import clustered_error

DOCUMENTS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.floats(-20, 0, width=32), max_size=6)), max_size=10)


def added(documents: list[tuple[int, list[float]]], batches: int = 1) -> MeanSums:
    """Adds documents, each with its group and its values."""
    sums = MeanSums()
    for part in range(batches):
        some = documents[part::batches]
        groups, counts = (np.array(column, np.int64) for column in ([g for g, _ in some], [len(d) for _, d in some]))
        values = np.array([x for _, d in some for x in d], np.float64)
        sums.add(groups, np.array([math.fsum(d) for _, d in some], np.float64), counts, values)
    return sums


def near(found: float | None, expected: float | None) -> bool:
    """The formulas round relative to the sums: 1e-13 of 120."""
    if found is None or expected is None:
        return found is expected
    return found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(DOCUMENTS, st.integers(1, 3))
def test_errors_are_those_of_the_formulas(documents: list[tuple[int, list[float]]], batches: int):
    sums = added(documents, batches)
    for group in (0, 1, 2, None):
        own = [d for g, d in documents if group in (g, None)]
        totals, counts = np.array([math.fsum(d) for d in own], np.float64), np.array([len(d) for d in own], np.int64)
        assert sums.total(group) == math.fsum(totals)
        assert near(sums.clustered_error(group), clustered_error(totals, counts))
        values = [x for d in own for x in d]
        expected = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        assert near(sums.tokenwise_error(group), expected)


def test_equal_values_have_no_error():
    """To the last bit, for a value that float64 cannot hold exactly and sums that are rounded."""
    third = 1 / 3
    sums = added([(0, [third] * n) for n in (1, 4, 2)])
    assert sums.clustered_error(0) == pytest.approx(0, abs=1e-16)
    assert sums.tokenwise_error(0) == 0.0


def test_no_error_is_known_where_a_value_is_infinite():
    sums = added([(0, [-1.0]), (0, [-math.inf, -2.0]), (1, [-1.0]), (1, [-3.0])])
    assert sums.total(0) == -math.inf
    assert (sums.clustered_error(0), sums.tokenwise_error(0)) == (None, None)
    assert sums.clustered_error(1) == sums.tokenwise_error(1) == pytest.approx(1.0)


def test_without_values_there_is_no_tokenwise_error():
    sums = MeanSums()
    sums.add(np.zeros(2, np.int64), np.array([1.0, 4.0]), np.array([1, 2]))
    assert sums.tokenwise_error(0) is None
    assert sums.clustered_error(0) is not None
