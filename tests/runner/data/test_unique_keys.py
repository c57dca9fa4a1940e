"""Duplicate keys are found with their first places, at 16 bytes a row."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.data.unique_keys import FIRST_LOOK, KeyDigests


def keys_of(values: list[str | None]) -> KeyDigests:
    keys = KeyDigests()
    for value in values:
        keys.add(value)
    return keys


@given(st.lists(st.none() | st.sampled_from(["", "a", "b", "é", "\ud800", "0", "1", "2", "3", "4", "5"]), max_size=12))
def test_the_first_key_that_was_there_before_is_found_with_where_it_was(values: list[str | None]):
    again = [i for i, value in enumerate(values) if value is not None and value in values[:i]]
    expected = (values.index(values[again[0]]), again[0]) if again else None
    assert keys_of(values).duplicate() == expected


def test_a_look_is_due_whenever_the_rows_have_doubled():
    keys, looks = KeyDigests(), list[int]()
    for number in range(5 * FIRST_LOOK):
        keys.add(str(number))
        if keys.due:
            looks.append(len(keys))
            assert keys.duplicate() is None
    assert looks == [FIRST_LOOK, 2 * FIRST_LOOK, 4 * FIRST_LOOK]


def test_a_row_costs_16_bytes():
    tracemalloc.start()
    keys = keys_of([str(number) for number in range(50_000)])
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(keys) == 50_000
    assert held < 50_000 * 19  # a bytearray grows by an eighth ahead
