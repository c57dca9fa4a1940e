"""Tests that sizes and counts have few digits and a unit."""

import pytest
from mlx_bulk.runner.core.units import short_count, size_as_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1.00k"),
        (9_994, "9.99k"),
        (12_340, "12.3k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (10**12, "1,000G"),
    ],
)
def test_counts_have_three_digits(count: int, text: str):
    assert short_count(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (9_950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1.3e9, "1.3 GB"),
        (1.3e12, "1.3 TB"),
        (1.3e15, "1,300 TB"),
        (-253_000, "-253.0 kB"),
    ],
)
def test_sizes_have_two_or_three_digits(count: float, text: str):
    assert size_as_text(count) == text
