"""Tests that bars of a histogram have round widths and are few."""

import pytest
from mlx_bulk.jobs.statistics.bar_widths import bins_in_a_bar


@pytest.mark.parametrize(
    ("bins", "width", "expected"),
    [(1, 1, 1), (9, 1, 1), (11, 1, 2), (101, 1, 20), (201, 1, 25), (999, 1, 100), (100, 0.01, 10), (30, 0.25, 4)],
)
def test_a_bar_has_a_round_width(bins: int, width: float, expected: int):
    assert bins_in_a_bar(bins, width, 10) == expected
