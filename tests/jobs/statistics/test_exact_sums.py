"""Exact sums against Python's fractions, in any order and in any batches."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.statistics.exact_sums import SCALE, ExactSums, exact_products, rounded

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def added(numbers: Sequence[tuple[int, float]], batches: int = 1) -> ExactSums:
    sums = ExactSums()
    for part in range(batches):
        some = numbers[part::batches]
        sums.add(np.array([group for group, _ in some], np.int64), np.array([x for _, x in some], np.float64))
    return sums


@given(st.lists(st.tuples(st.integers(0, 4), FINITE), max_size=40), st.integers(1, 5))
def test_sums_are_those_of_fractions(numbers: list[tuple[int, float]], batches: int):
    sums = added(numbers, batches)
    for group in range(5):
        assert Fraction(sums.units(group), 1 << SCALE) == sum((Fraction(x) for of, x in numbers if of == group), Fraction(0))
    assert Fraction(sums.units(None), 1 << SCALE) == sum((Fraction(x) for _, x in numbers), Fraction(0))


def test_what_cancels_leaves_what_is_small():
    numbers = [(0, 1e300), (0, 5e-324), (0, -1e300), (0, 1.0), (0, -1.0)]
    assert added(numbers).total(0) == added(numbers, 3).total(None) == 5e-324


def test_totals_are_rounded_as_fsum_rounds():
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, 1000) * 10.0 ** rng.integers(-12, 12, 1000)
    assert added([(0, x) for x in values.tolist()], 7).total(0) == math.fsum(values)


def test_what_is_not_finite_stays_in_its_group():
    sums = added([(0, 1.5), (1, -math.inf), (1, 2.0), (2, math.inf), (2, -math.inf)])
    assert (sums.total(0), sums.total(1)) == (1.5, -math.inf)
    assert math.isnan(sums.total(2))
    assert [sums.finite(group) for group in (0, 1, 2, None)] == [True, False, False, False]
    assert added([(0, -math.inf)]).total(0) == -math.inf


def test_a_group_that_never_came_is_zero():
    assert (added([]).total(None), added([(0, 1.0)]).total(7)) == (0.0, 0.0)


@given(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100))
def test_a_product_is_the_sum_of_its_two_parts(a: float, b: float):
    a, b = (0.0 if abs(x) < 1e-100 else x for x in (a, b))  # what is smaller may lose its last bits
    product, rest = (float(x[0]) for x in exact_products(np.array([a]), np.array([b])))
    assert Fraction(product) + Fraction(rest) == Fraction(a) * Fraction(b)


def test_units_are_rounded_to_the_nearest():
    assert rounded(3 << SCALE) == 3.0
    assert rounded((1 << SCALE) // 3) == 1 / 3
