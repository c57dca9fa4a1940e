"""Tests the calls of a prefill, as properties: every row once, similar lengths, and pads that cost less than another call."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.scheduler.prefill_calls import call_width, prefill_calls, similar_lengths
from mlx_bulk.runner.scheduler.prefix_tree import CALL_TOKENS


@settings(max_examples=50)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=30))
def test_rows_of_similar_length_share_a_call(lengths: list[int]):
    lengths = sorted(lengths, reverse=True)
    parts = list(similar_lengths(lengths))
    assert np.concatenate([np.arange(len(lengths))[part] for part in parts]).tolist() == list(range(len(lengths)))
    pads = [sum(lengths[part.start] - n for n in lengths[part]) for part in parts]
    assert max(pads) <= CALL_TOKENS
    for part, after in pairwise(parts):
        assert pads[parts.index(part)] + lengths[part.start] - lengths[after.start] > CALL_TOKENS


shapes = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 2)), min_size=1, max_size=30)


@given(shapes, st.booleans(), st.booleans(), st.booleans())
def test_each_row_is_in_one_call_and_calls_come_longest_first(rows: list[tuple[int, int]], padded: bool, ragged: bool, static: bool):
    lengths, starts = [length for length, _ in rows], [start for _, start in rows]
    calls = prefill_calls(lengths, starts, padded=padded, ragged=ragged, static=static)
    assert sorted(row for call in calls for row in call) == list(range(len(rows)))
    longest = [max(lengths[row] for row in call) for call in calls]
    assert longest == sorted(longest, reverse=True)
    if len(calls) == 1:
        assert calls[0] == list(range(len(rows)))


@given(shapes, st.booleans())
def test_a_prefill_that_must_not_be_ragged_has_calls_of_equal_rows(rows: list[tuple[int, int]], static: bool):
    calls = prefill_calls([n for n, _ in rows], [start for _, start in rows], padded=True, ragged=False, static=static)
    assert [{rows[row] for row in call} for call in calls] == [{shape} for shape in sorted(set(rows), key=lambda x: (-x[0], x[1]))]


@pytest.mark.parametrize("way", [{"padded": False, "ragged": True, "static": False}, {"padded": True, "ragged": True, "static": True}])
def test_a_static_batch_and_rows_without_pads_are_one_call(way: dict[str, bool]):
    assert prefill_calls([3, 500, 9], [0, 0, 0], **way) == [[0, 1, 2]]


def test_a_call_is_as_wide_as_its_longest_row_but_never_a_padded_token():
    assert call_width([3, 5]) == 5
    assert call_width([1, 1]) == 1
    assert call_width([1, 0]) == 2
