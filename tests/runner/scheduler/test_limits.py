"""Tests the longest row that has room."""

import pytest
from mlx_bulk.runner.scheduler.limits import Limits


@pytest.mark.parametrize(("token", "row", "pair"), [(10.0, 0.0, 0.0), (7.0, 100.0, 0.0), (3.0, 5.0, 0.5)])
def test_the_longest_row_is_the_last_one_that_fits(token: float, row: float, pair: float):
    limits = Limits(4, 100, 1000.0, token, row, pair_bytes=pair)
    assert limits.kv(1, limits.longest) <= 1000 < limits.kv(1, limits.longest + 1)


def test_no_row_fits_where_its_state_alone_is_too_large():
    assert Limits(4, 100, 10.0, 1.0, 20.0).longest == 0
