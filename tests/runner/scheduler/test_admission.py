"""Tests admission: an empty batch is always filled, another when an eighth of its slots is free, within the KV budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.scheduler.admission import joining_rows, may_join
from mlx_bulk.runner.scheduler.limits import Limits, Load

WIDE = Limits(rows=16, tokens=1 << 20, kv_bytes=1e12, token_bytes=1.0, row_bytes=0.0)


@pytest.mark.parametrize(("rows", "joins", "allowed"), [(0, False, True), (1, False, False), (14, True, True), (15, True, False)])
def test_a_batch_is_joined_when_an_eighth_of_its_slots_are_free(rows: int, joins: bool, allowed: bool):
    assert may_join(WIDE, rows, joins) == allowed


def test_a_small_batch_is_joined_when_one_slot_is_free():
    small = Limits(3, 100, 1e12, 1.0, 0.0)
    assert may_join(small, 2, joins=True)
    assert not may_join(small, 3, joins=True)


@given(
    st.integers(1, 9), st.sampled_from([50.0, 400.0, 1e9]), st.integers(0, 9), st.integers(0, 60), st.lists(st.integers(1, 60), min_size=1)
)
def test_rows_that_enter_stay_within_slots_and_kv_bytes(rows: int, kv_bytes: float, decoding: int, longest: int, reaches: list[int]):
    limits = Limits(rows, 100, kv_bytes, 1.0, 2.0)
    entering = joining_rows(limits, Load(decoding, longest), reaches)
    together = max(longest, *reaches, 0)
    assert entering >= 0
    if entering and decoding + entering > 1:  # one row alone is taken even where it is too large
        assert decoding + entering <= rows
        assert limits.kv(decoding + entering, together) <= kv_bytes
    if decoding + entering < rows:
        assert limits.kv(decoding + entering + 1, together) > kv_bytes
