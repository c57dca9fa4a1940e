"""Tests the positions of rows with pictures against a plain specification, however the rows' tokens come in calls."""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.caches.row_positions import RowPositions
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from numpy.typing import NDArray

from ..support.picture_truth import specified_positions

Positions = NDArray[np.int64]
TABLE = ImageTable(7)
GRIDS = [(1, 2, 3), (1, 4, 2), (1, 1, 1), (1, 3, 3)]
PICTURES = [TABLE.register(str(grid), grid[1] * grid[2], grid, dict) for grid in GRIDS]


def specified(ids: Sequence[int]) -> Positions:
    return specified_positions(TABLE, ids)


def made_of(parts: Sequence[int | PromptImage]) -> NDArray[np.int32]:
    """So many text tokens, or a picture, one after the other."""
    return np.concatenate([np.zeros(0, np.int32), *(np.full(part, 3, np.int32) if isinstance(part, int) else part.ids for part in parts)])


def whole(positions: Any, t: int) -> Positions:
    """Positions [3, B, T] of a call."""
    if positions.sections is not None:
        return positions.sections
    return np.broadcast_to(positions.starts[:, None] + np.arange(t), (3, len(positions.starts), t))


def fed(
    cache: RowPositions, rows: Sequence[NDArray[np.int32]], cuts: Sequence[int], seen: list[Positions] | None = None
) -> list[Positions]:
    """Positions of rows that come in calls which end at ``cuts``, padded on the right, as a prefill makes them."""
    width, lengths = max(map(len, rows)), [len(row) for row in rows]
    tokens = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    cache.prepare(lengths=lengths, right_padding=[width - n for n in lengths])
    parts = [[np.zeros((3, 0), np.int64)] for _ in rows]
    for begin, end in zip([0, *cuts], [*cuts, width], strict=True):
        call = whole(cache.take(tokens[:, begin:end], len(rows), end - begin, [n - begin for n in lengths], TABLE), end - begin)
        for row, n in enumerate(lengths):
            parts[row].append(call[:, row, : max(0, min(n, end) - begin)])
    cache.finalize()
    return [np.concatenate(own, axis=1) for own in parts]


ROWS = st.lists(st.lists(st.one_of(st.integers(1, 5), st.sampled_from(PICTURES)), min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(ROWS, st.data())
def test_any_rows_in_any_calls(parts: list[list[int | PromptImage]], data: st.DataObject):
    rows = [made_of(row) for row in parts]
    width = max(map(len, rows))
    cuts = sorted(data.draw(st.sets(st.integers(1, width - 1), max_size=4))) if width > 1 else []
    cache = RowPositions(len(rows))
    for found, ids in zip(fed(cache, rows, cuts), rows, strict=True):
        assert np.array_equal(found, specified(ids.tolist()))
    step = cache.take(None, len(rows), 1, None)  # a decode step
    assert step.starts.tolist() == [specified([*ids.tolist(), 3])[0, -1] for ids in rows]


def test_the_drawing_of_the_module():
    found = fed(RowPositions(1), [made_of([2, PICTURES[0], 2])], [])[0]
    assert found.tolist() == [[0, 1, 2, 2, 2, 2, 2, 2, 5, 6], [0, 1, 2, 2, 2, 3, 3, 3, 5, 6], [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]]


def goes_on(cache: RowPositions, rows: list[NDArray[np.int32]]) -> None:
    """What follows in each row has the positions that it would have in the whole row."""
    more = [made_of([2, PICTURES[row % len(PICTURES)], 1]) for row in range(len(rows))]
    for found, before, own in zip(fed(cache, more, [3]), rows, more, strict=True):
        assert np.array_equal(found, specified([*before.tolist(), *own.tolist()])[:, len(before) :])


THREE = [made_of([4]), made_of([1, PICTURES[1], PICTURES[0]]), made_of([PICTURES[3], 2])]


def test_rows_leave_fork_join_and_merge():
    cache = RowPositions(3)
    fed(cache, THREE, [2, 5])
    cache.filter(mx.array([2, 1, 1]))
    goes_on(copy.deepcopy(cache), [THREE[2], THREE[1], THREE[1]])
    other = RowPositions(1)
    fed(other, THREE[:1], [])
    cache.extend(other)
    goes_on(copy.deepcopy(cache), [THREE[2], THREE[1], THREE[1], THREE[0]])
    merged = RowPositions.merge([cache, other])
    goes_on(merged, [THREE[2], THREE[1], THREE[1], THREE[0], THREE[0]])


def test_one_row_stands_for_all_rows_of_a_call():
    cache = RowPositions(1)
    fed(cache, THREE[1:2], [])
    goes_on(cache, [THREE[1]] * 3)


def test_what_calls_took_in_is_taken_back():
    cache = RowPositions(3)
    first = [made_of([1, PICTURES[0]])] * 3
    fed(cache, first, [4])
    fed(cache, THREE, [3, 7])
    cache.trim(max(map(len, THREE)))
    goes_on(copy.deepcopy(cache), first)
    for _ in range(3):
        cache.take(None, 3, 1, None)
    cache.trim(2)
    goes_on(cache, [np.append(row, 3) for row in first])


def test_a_call_is_taken_back_whole():
    cache = RowPositions(1)
    fed(cache, THREE[1:2], [])
    with pytest.raises(ValueError, match="begin within a call"):
        cache.trim(3)


def test_calls_of_one_column_with_pads_or_a_picture_are_taken_back() -> None:
    for column, lengths in (([3, 3], [1, 0]), ([PICTURES[2].first, 3], None), ([PICTURES[0].first, 3], None)):
        cache = RowPositions(2)
        first = [made_of([4]), made_of([PICTURES[1]])]
        fed(cache, first, [])
        cache.take(np.array(column, np.int32)[:, None], 2, 1, lengths, TABLE)
        cache.take(None, 2, 1, None)
        cache.trim(2)
        goes_on(cache, first)
