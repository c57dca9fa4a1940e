"""Tests rounds, shards and positions: every row of every round has one place, and a shard keeps to one round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.shard_layout import PICTURE_ROWS, WINDOW_ROWS, Layout, window_size

LAYOUTS = st.builds(Layout, st.integers(0, 40), st.integers(1, 12), st.integers(1, 4))


@given(LAYOUTS)
def test_shards_hold_every_row_of_every_round_once_in_order(layout: Layout):
    rows = [row for shard in range(layout.shards) for row in layout.rows_of(shard)]
    assert rows == list(range(layout.rows)) * layout.rounds
    assert len(rows) == layout.total
    assert all(0 < len(layout.rows_of(shard)) <= layout.rows_per_shard for shard in range(layout.shards))
    assert not layout.rows_of(layout.shards)


@given(LAYOUTS)
def test_a_position_says_shard_round_and_row(layout: Layout):
    positions = [layout.position(around, row) for around in range(layout.rounds) for row in range(layout.rows)]
    assert positions == sorted(set(positions))
    places = [(layout.round_of(p), layout.row_of(p)) for p in positions]
    assert places == [(around, row) for around in range(layout.rounds) for row in range(layout.rows)]
    assert all(layout.row_of(p) in layout.rows_of(layout.shard_of(p)) and layout.has(p) for p in positions)
    between = set(range(-1, layout.shards * layout.rows_per_shard + 1)) - set(positions)
    assert not any(map(layout.has, between))


@given(st.integers(0, 40), st.integers(1, 12))
def test_in_a_run_of_one_round_a_position_is_the_row(rows: int, per_shard: int):
    layout = Layout(rows, per_shard)
    assert [layout.row_of(row) for row in range(rows)] == [layout.position(0, row) for row in range(rows)] == list(range(rows))


@given(LAYOUTS)
def test_more_rounds_move_nothing(layout: Layout):
    more = Layout(layout.rows, layout.rows_per_shard, layout.rounds + 1)
    assert [more.rows_of(shard) for shard in range(layout.shards)] == [layout.rows_of(shard) for shard in range(layout.shards)]
    assert all(more.position(0, row) == layout.position(0, row) for row in range(layout.rows))


@pytest.mark.parametrize(("rounds", "expected"), [(None, Layout(5, 2)), (3, Layout(5, 2, 3))])
def test_run_json_says_the_layout(rounds: int | None, expected: Layout):
    config = {"batch": {"rows_per_shard": 2}} | ({} if rounds is None else {"rounds": rounds})
    assert Layout.of({"config": config, "inputs": {"limit": 5, "sources": [{"rows": 9}]}}) == expected


@given(st.integers(1, 3 * WINDOW_ROWS), st.booleans())
def test_a_window_is_whole_shards_of_up_to_so_many_rows_or_one_shard(rows_per_shard: int, pictures: bool):
    most = PICTURE_ROWS if pictures else WINDOW_ROWS
    rows = window_size(rows_per_shard, one_shard=False, pictures=pictures)
    if rows_per_shard > most:
        assert rows == (most if pictures else rows_per_shard), "with pictures it is a part of a shard"
    else:
        assert rows % rows_per_shard == 0
        assert most - rows_per_shard < rows <= most
    assert window_size(rows_per_shard, one_shard=True, pictures=pictures) == rows_per_shard
