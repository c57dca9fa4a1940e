"""Tests how figures are rounded beside their errors."""

import math

import pytest
from mlx_bulk.jobs.terminal.tables import figure


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (None, None, "–"),
        (1234, None, "1,234"),
        (12.3456, 0.6666, "12.35 ± 0.67"),
        (1.0, 0.0, "1.000 ± 0"),
        (1.0, 7.2e-10, "1.000 ± 7.2e-10"),  # of rounding alone: ten digits would say nothing
        (-8.7e-10, 8.7e-10, "-8.70e-10 ± 8.7e-10"),
        (2e9, 3.0, "2.00e+09 ± 3.0e+00"),
        (math.inf, 1.0, "∞"),
    ],
)
def test_a_figure_has_the_digits_that_its_error_leaves(value: float | None, error: float | None, shown: str):
    assert figure(value, error) == shown
