"""Tests a plan's histogram: each value is in one bar, ranges are round, and an outlier does not fill the chart."""

import re

from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.plan.histogram import BINS, text_histogram

LINE = re.compile(r" *(?:(\d[\d,]*)(?: – (\d[\d,]*))?|(\d[\d,]*) and more) ([█▏▎▍▌▋▊▉]*) (\d[\d,]*)")


def test_a_chart_as_it_looks():
    assert text_histogram([100] * 8 + [101] * 4 + [102], 40) == [
        "100 ██████████████████████████████████ 8",
        "101 █████████████████ 4",
        "102 ████▎ 1",
    ]


def test_outliers_share_one_bar():
    lines = text_histogram([*range(100, 200)] * 10 + [90_000], 60)
    assert len(lines) <= BINS + 2
    assert lines[-1].split(" ")[-1] == "1"
    assert " and more " in lines[-1]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300))
def test_each_value_is_in_one_bar(values: list[int]):
    counted = 0
    for line in text_histogram(values, 80):
        found = LINE.fullmatch(line)
        assert found, line
        assert len(line) <= 80
        low, high, more, bar, count = found.groups()
        start = int((low or more).replace(",", ""))
        end = float("inf") if more else int((high or low).replace(",", ""))
        inside = sum(start <= value <= end for value in values)
        assert inside == int(count.replace(",", ""))
        assert bool(bar) == bool(inside)
        counted += inside
    assert counted == len(values)
