"""Tests the speed of a run, the time that is left, and the pieces that fit on a line."""

import pytest
from mlx_bulk.runner.runs.throughput import Counts, Pace, duration


def walked(seconds: int, tokens: int, rows: float = 1.0, of: int = 10_000) -> Pace:
    """A run that has done ``rows`` rows and ``tokens`` tokens in each of so many seconds."""
    pace = Pace()
    for now in range(seconds + 1):
        pace.add(float(now), Counts(int(now * rows), of, 0), now * tokens)
    return pace


def test_the_rate_is_the_last_minutes():
    pace = walked(100, tokens=1_000)
    assert pace.tokens_per_second == 1_000
    for now in range(101, 131):  # half a minute of nothing
        pace.add(float(now), Counts(100, 10_000, 0), 100_000)
    assert pace.tokens_per_second == 500
    for now in range(131, 161):
        pace.add(float(now), Counts(100, 10_000, 0), 100_000)
    assert pace.tokens_per_second == 0


def test_a_rate_needs_time_and_never_runs_backwards():
    pace = Pace()
    pace.add(5.0, Counts(1, 10, 0), 10)
    assert (pace.tokens_per_second, pace.seconds_left) == (0.0, None)
    pace.add(6.0, Counts(1, 10, 0), 4)  # rows that start again as memory ran out
    assert (pace.tokens_per_second, pace.seconds_left) == (0.0, None)


def test_what_is_left_goes_by_the_rows_of_the_last_ten_minutes():
    pace = walked(1_000, tokens=0, rows=2)
    assert pace.seconds_left == pytest.approx(8_000 / 2)
    pace.add(1_600.0, Counts(2_300, 10_000, 0), 0)
    assert pace.seconds_left == pytest.approx(7_700 / (300 / 600))


def test_rows_that_cannot_be_done_are_no_speed():
    pace = Pace()
    pace.add(0.0, Counts(0, 1_000, 0), 0)
    pace.add(1.0, Counts(500, 1_000, 500), 0)
    assert pace.seconds_left is None
    pace.add(10.0, Counts(600, 1_000, 500), 0)
    assert pace.seconds_left == pytest.approx(400 / (100 / 10))


def test_rows_of_earlier_sessions_are_no_speed_of_this_one():
    pace = Pace()
    pace.add(0.0, Counts(900, 1_000, 0), 0)
    pace.add(10.0, Counts(910, 1_000, 0), 0)
    assert pace.seconds_left == pytest.approx(90)


def test_the_line_says_what_there_is():
    pace = Pace()
    pace.add(0.0, Counts(0, 1_319, 0), 0)
    assert pace.line() == "0 of 1,319 rows (0.0 %), 0 tok/s, 0 tokens"
    for workers, said in ((1, "1 worker"), (3, "3 workers")):
        pace.add(0.0, Counts(0, 1_319, 0, workers=workers), 0)
        assert pace.line() == f"0 of 1,319 rows (0.0 %), 0 tok/s, {said}, 0 tokens"
    pace.add(10.0, Counts(1_318, 1_319, 1, policy=4), 12_340)
    assert pace.line() == "1,318 of 1,319 rows (99.9 %), 1,234 tok/s, 1 error, policy 4, 12.3k tokens"
    pace.add(12.0, Counts(1_319, 1_319, 2), 12_340)
    assert pace.line() == "1,319 of 1,319 rows (100 %), 1,028 tok/s, 2 errors, 12.3k tokens"


def test_a_narrow_terminal_gets_what_matters_most():
    pace = Pace()
    pace.add(0.0, Counts(0, 1_319, 0), 0)
    pace.add(60.0, Counts(1_000, 1_319, 3), 60_000)
    assert pace.line() == "1,000 of 1,319 rows (75.8 %), 1,000 tok/s, 19 s left, 3 errors, 60.0k tokens"
    assert pace.line(60) == "1,000 of 1,319 rows (75.8 %), 1,000 tok/s, 19 s left"
    assert pace.line(40) == "1,000 of 1,319 rows (75.8 %), 19 s left"
    assert all(len(pace.line(width)) <= width for width in range(28, 100))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.6, "1 min"), (3_600, "1 h"), (7_500, "2 h 5 min"), (273_600, "3 d 4 h")])
def test_durations_have_two_units(seconds: float, text: str):
    assert duration(seconds) == text
