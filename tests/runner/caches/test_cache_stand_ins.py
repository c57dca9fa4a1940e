"""Who sees whom both ways, against plain loops over pairs of columns."""

import numpy as np
import pytest
from mlx_bulk.runner.caches.cache_stand_ins import BothWays

LENGTHS = [7, 3, 5]


def specified(length: int, n: int, window: int | None) -> list[list[bool]]:
    return [[i == j or (j < length and (window is None or abs(i - j) < window)) for j in range(n)] for i in range(n)]


@pytest.mark.parametrize("window", [None, 1, 3, 7, 50])
@pytest.mark.parametrize("n", [7, 9])
def test_a_token_sees_its_row_within_the_window_and_a_pad_itself(window: int | None, n: int) -> None:
    mask = BothWays(LENGTHS, window).make_mask(n, window_size=window)
    assert mask is not None
    assert mask.shape == (3, 1, n, n)
    assert np.array(mask)[:, 0].tolist() == [specified(length, n, window) for length in LENGTHS]


def test_a_layer_without_a_window_sees_all() -> None:
    mask = BothWays(LENGTHS, 2).make_mask(7)
    assert np.array(mask)[:, 0].tolist() == [specified(length, 7, None) for length in LENGTHS]


def test_rows_without_pads_need_no_mask() -> None:
    assert BothWays([4, 4], 4).make_mask(4, window_size=8) is None
    assert BothWays([4, 4], 3).make_mask(4, window_size=8) is not None
    assert BothWays([4, 4], None).make_mask(4, return_array=True) is not None
