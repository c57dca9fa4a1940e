"""Tests the longest row that has room."""

import pytest
from mlx_bulk.runner.scheduler.limits import Limits


@pytest.mark.parametrize(("token", "row", "pair"), [(10.0, 0.0, 0.0), (7.0, 100.0, 0.0), (3.0, 5.0, 0.5)])
def test_the_longest_row_is_the_last_one_that_fits(token: float, row: float, pair: float):
    limits = Limits(4, 100, 1000.0, token, row, pair_bytes=pair)
    assert limits.kv(1, limits.longest) <= 1000 < limits.kv(1, limits.longest + 1)


def test_no_row_fits_where_its_state_alone_is_too_large():
    assert Limits(4, 100, 10.0, 1.0, 20.0).longest == 0


def test_calls_of_few_shapes_fill_the_tokens_of_a_call():
    limits = Limits(256, 15360, 1e9, 1.0, 0.0, few_shapes=True)
    widths = {longest: limits.width(longest) for longest in range(1, 15361)}
    assert all(longest <= width <= 1.25 * (longest + 63) and width % 64 == 0 for longest, width in widths.items())
    assert sorted(set(widths.values()))[:12] == [64, 128, 192, 256, 320, 384, 512, 640, 768, 960, 1024, 1280]
    assert limits.shape(80, 190) == (80, 192)
    assert limits.shape(1, 190) == (10, 192)  # an eighth of 80 rows
    assert limits.shape(11, 129) == (20, 192)
    assert len({limits.shape(rows, 190) for rows in range(1, 81)}) == 8


def test_calls_of_few_shapes_keep_to_rows_and_positions():
    limits = Limits(8, 1 << 30, 1e9, 1.0, 0.0, few_shapes=True, positions=200)
    assert limits.shape(1, 23) == (1, 64)
    assert limits.shape(3, 193) == (3, 200)
    assert limits.shape(1, 300) == (1, 300)


def test_without_few_shapes_a_call_is_as_wide_as_its_longest_row():
    assert Limits(256, 15360, 1e9, 1.0, 0.0).shape(11, 129) == (11, 129)
