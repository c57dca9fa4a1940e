"""Tests suspect rows: each group runs before all others, alone in the model, and is on the disk before the next."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.progress import Progress
from mlx_bulk.runner.core.requests import BadRow, Row, Sample
from mlx_bulk.runner.engine.interface import FixedWeights
from mlx_bulk.runner.pipeline.model_work import isolated_outcomes, suspect_rows

from ..support.made_up_jobs import Written, outcome, rows_of, threads_of


def test_rows_are_picked_in_the_order_of_their_groups_and_no_further_than_needed():
    read: list[int] = []

    def rows() -> Iterator[Row | BadRow]:
        for row in rows_of(*[1] * 20):
            if row.position != 5:  # done, and not given any more
                read.append(row.position)
                yield row

    found = suspect_rows(rows(), [(7,), (2, 5, 4)])
    assert [[row.position for row in group] for group in found] == [[7], [2, 4]]
    assert max(read) <= 8
    assert suspect_rows(iter(rows_of(1)), []) == []


class Recording(FixedWeights):
    """Stands where the engine does: answers each window, and notes what it was given before anything was saved."""

    def __init__(self, written: Written):
        self.progress, self.written, self.seen = Progress(), written, list[tuple[list[int], list[int]]]()

    def run(self, next_window: Callable[[bool], list[Any] | None], stopped: Callable[[], bool]) -> Iterator[Generated]:
        while not stopped() and (window := next_window(True)) is not None:
            self.seen.append(([request.row for request in window], list(self.written.flushed)))
            for request in window:
                yield outcome(request.row, Sample(0, 0))


def test_each_group_is_saved_before_the_next_begins():
    rows, written = rows_of(1, 1, 1, 1, 1), Written()
    groups = suspect_rows(iter(rows), [(3,), (1, 2)])
    threads, engine = threads_of(rows, written, isolated=groups), Recording(written)
    for each in isolated_outcomes(engine, threads, len(groups), lambda: False):
        threads.put(each)
    threads.close()
    assert engine.seen == [([3], []), ([1, 2], [1]), ([0, 4], [1, 3])]


@pytest.mark.parametrize("stop_after", [0, 1])
def test_a_stop_ends_the_groups_too(stop_after: int):
    rows, written = rows_of(1, 1, 1), Written()
    threads, engine = threads_of(rows, written, isolated=[[rows[1]], [rows[2]]]), Recording(written)
    found: list[int] = []
    for each in isolated_outcomes(engine, threads, 2, lambda: len(found) >= stop_after):
        found.append(each.row)
        threads.put(each)
    threads.close()
    assert found == [1][:stop_after]
