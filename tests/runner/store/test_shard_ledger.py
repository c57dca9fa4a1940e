"""Tests the ledger of an open shard against sets; it takes a few bytes for each row."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.store.shard_ledger import WHOLE, Ledger

FIRST, ROWS = 40, 4
samples = st.sampled_from([0, 1, 7, 8, 31, 32, 63, 64, 65, 1000])
places = st.lists(st.tuples(st.integers(FIRST, FIRST + ROWS - 1), samples), unique=True, max_size=20)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


@given(places, places, st.dictionaries(st.integers(FIRST, FIRST + ROWS - 1), st.integers(0, 4)), st.booleans())
def test_it_says_what_sets_would_say(results: list[tuple[int, int]], errors: list[tuple[int, int]], needed: dict[int, int], at_once: bool):
    errors = [pair for pair in errors if pair not in results]
    ledger, rows = Ledger(FIRST, ROWS), range(FIRST, FIRST + ROWS)
    if at_once:
        ledger.add_results(*columns(results))
        ledger.add_errors(*columns(errors))
    else:
        for row, sample in results:
            ledger.add_result(row, sample)
        for row, sample in errors:
            ledger.add_error(row, sample)
    for row, count in needed.items():
        ledger.admit(row, count)
    found = {row: {sample for at, sample in results + errors if at == row} for row in rows}
    assert {row: ledger.samples_of(row) for row in rows} == found
    resolved = {row for row, count in needed.items() if found[row] >= set(range(count))}
    assert {row for row in rows if ledger.is_resolved(row)} == resolved
    assert all(
        ledger.has(row, sample) == (sample in found[row] or row in resolved) for row in rows for sample in (0, 7, 8, 63, 64, 1000, 2)
    )
    assert (ledger.records, ledger.errors, ledger.left) == (len(results), len(errors), ROWS - len(resolved))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_row_that_failed_whole_has_all_its_samples(at_once: bool):
    ledger = Ledger(FIRST, ROWS)
    if at_once:
        ledger.add_errors(*columns([(41, WHOLE), (42, 1)]))
    else:
        ledger.add_error(41, None)
        ledger.add_error(42, 1)
    assert [ledger.has_failed(row) for row in range(FIRST, FIRST + ROWS)] == [False, True, False, False]
    assert [ledger.has(41, 0), ledger.has(41, 99), ledger.has(42, 0), ledger.has(42, 1)] == [True, True, False, True]
    assert ledger.is_resolved(41)
    assert ledger.left == ROWS - 1


def test_rows_are_resolved_once_however_often_they_are_named():
    ledger = Ledger(FIRST, ROWS)
    ledger.resolve(np.array([40, 41]))
    ledger.resolve(np.array([41, 42]))
    ledger.admit(41, 1)
    ledger.add_error(41, None)
    assert ledger.left == 1
    assert ledger.has(42, 3)


@pytest.mark.parametrize("row", [FIRST - 1, FIRST + ROWS])
def test_rows_of_another_shard_are_refused(row: int):
    ledger = Ledger(FIRST, ROWS)
    with pytest.raises(ValueError, match="not all of a shard of 4 from 40 on"):
        ledger.add_results(*columns([(41, 0), (row, 0)]))


@pytest.mark.parametrize(("n", "bytes_a_row"), [(1, 8), (8, 8), (16, 9)])
def test_a_row_costs_a_few_bytes(n: int, bytes_a_row: int):
    rows = 100_000
    tracemalloc.start()
    ledger = Ledger(0, rows)
    for sample in (0, n - 1):
        ledger.add_results(np.arange(rows), np.full(rows, sample))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < bytes_a_row * rows
    assert ledger.records == 2 * rows


@pytest.mark.parametrize("n", [1, 2, 64, 65, 70])
def test_samples_beyond_those_asked_for_resolve_nothing(n: int):
    """A run that continues with fewer samples a row has some that are no longer requested."""
    ledger = Ledger(FIRST, ROWS)
    ledger.add_result(41, n + 1)
    ledger.admit(41, n)
    for sample in reversed(range(n)):
        assert not ledger.is_resolved(41)
        assert not ledger.has(41, sample)
        ledger.add_result(41, sample)
    assert ledger.is_resolved(41)
    assert ledger.records == n + 1
