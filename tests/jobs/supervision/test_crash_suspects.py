"""Tests the conclusions from deaths, with a simulated process that dies whenever a killer row is in the model."""

import json
import math
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.supervision.crash_suspects import Suspects
from mlx_bulk.runner.core.errors import ModelError, OutOfRoom

RUN = "/outputs/run"


def one_process(suspects: Suspects, done: set[int], rows: int, batch: int, killers: set[int]) -> bool:
    """Simulates a process that gets its orders as JSON, and returns whether it died. Finished rows stay done."""
    orders: dict[str, Any] = json.loads(json.dumps(suspects.orders))
    suspects.receive({"run": RUN, "frozen": False, "positions": 1000, "rows": []})
    fatal = {row for row, _ in orders["fatal_rows"].get(RUN, [])}
    groups = [[row for row in group if row not in done | fatal] for group in orders["suspect_groups"].get(RUN, [])]
    left = [row for row in range(rows) if row not in done | fatal and not any(row in group for group in groups)]
    for group in [*filter(None, groups), *(left[at : at + batch] for at in range(0, len(left), batch))]:
        suspects.receive({"rows": group})
        if killers & set(group):
            return True
        done.update(group)
    return False


@given(st.integers(1, 60), st.integers(1, 16), st.sets(st.integers(0, 59), max_size=4))
def test_exactly_the_rows_that_kill_are_fatal_and_deaths_are_few(rows: int, batch: int, killers: set[int]):
    killers = {row for row in killers if row < rows}
    suspects, done, deaths = Suspects(), set[int](), 0
    while one_process(suspects, done, rows, batch, killers):
        deaths += 1
        suspects.record_death(signal.SIGABRT)
    assert set(suspects.fatal_rows.get(RUN, {})) == killers
    assert done == set(range(rows)) - killers
    # The batch dies, then a half of it, and so on; a batch of one is tried twice. Two killers may share some of it.
    assert deaths <= len(killers) * (math.ceil(math.log2(batch)) + 2)


def test_a_death_that_does_not_repeat_costs_its_batch():
    suspects = Suspects()
    suspects.receive({"run": RUN, "frozen": False, "positions": 1000, "rows": []})
    suspects.receive({"rows": [8, 9, 5, 7]})
    assert suspects.record_death(signal.SIGSEGV) == (
        "the process died of SIGSEGV with 4 rows in the model",
        "it starts again and runs them apart, at most 2 at once",
    )
    assert suspects.orders == {"started": [RUN], "suspect_groups": {RUN: [(5, 7), (8, 9)]}, "fatal_rows": {}, "batch_halvings": {}}
    suspects.receive({"rows": [20, 21]})  # both groups are done by then
    suspects.record_death(signal.SIGSEGV)
    assert suspects.orders["suspect_groups"] == {RUN: [(20,), (21,)]}
    assert suspects.orders["batch_halvings"] == {RUN: 1}


def test_batches_are_not_halved_because_of_one_row():
    suspects = Suspects()
    suspects.receive({"run": RUN, "frozen": False, "positions": 1000, "rows": [1, 2]})
    suspects.record_death(signal.SIGABRT)
    suspects.receive({"rows": [2]})
    suspects.record_death(signal.SIGABRT)
    assert list(suspects.fatal_rows[RUN]) == [2]
    suspects.receive({"rows": [7, 8]})
    suspects.record_death(signal.SIGABRT)
    assert suspects.batch_halvings == {}
    suspects.receive({"rows": [9, 10]})  # neither 7 nor 8 was to blame
    suspects.record_death(signal.SIGABRT)
    assert suspects.batch_halvings == {RUN: 1}
    suspects.receive({"run": "/outputs/other", "frozen": False, "positions": 1000, "rows": [9, 10]})
    suspects.record_death(signal.SIGABRT)
    assert suspects.batch_halvings == {RUN: 1}


def test_a_group_larger_than_a_batch_keeps_what_was_not_in_the_model():
    suspects = Suspects(suspect_groups={RUN: [(1, 2, 3, 4, 5), (6,)]}, started={RUN})
    suspects.receive({"run": RUN, "frozen": False, "positions": 1000, "rows": [1, 4]})
    suspects.record_death(signal.SIGABRT)
    assert suspects.orders["suspect_groups"] == {RUN: [(1,), (4,), (2, 3, 5), (6,)]}


def test_a_row_that_is_alone_by_chance_is_tried_again():
    suspects = Suspects()
    suspects.receive({"run": RUN, "frozen": False, "positions": 1000, "rows": [3]})
    suspects.record_death(signal.SIGKILL)
    assert suspects.orders == {"started": [RUN], "suspect_groups": {RUN: [(3,)]}, "fatal_rows": {}, "batch_halvings": {}}
    suspects.receive({"rows": [3]})
    assert suspects.record_death(signal.SIGKILL) == (
        "the process died of SIGKILL (the system may have been short of memory: lower batch.memory, batch.rows or batch.tokens) "
        "again with row 3 alone in the model",
        "it goes to errors/",
    )
    assert "twice with this row in the model" in suspects.fatal_rows[RUN][3]


def test_rows_of_a_later_round_are_named_by_their_place_in_the_input():
    suspects = Suspects()
    suspects.receive({"run": RUN, "frozen": False, "positions": 16, "rows": [35]})
    suspects.record_death(signal.SIGABRT)
    suspects.receive({"rows": [35]})
    assert suspects.record_death(signal.SIGABRT)[0] == "the process died of SIGABRT again with row 3 alone in the model"
    assert list(suspects.fatal_rows[RUN]) == [35]


def test_dying_before_any_row_is_in_the_model_is_tried_once_more():
    suspects = Suspects()
    suspects.record_death(signal.SIGABRT)
    suspects.receive({"run": RUN, "frozen": False, "positions": 1000, "rows": []})
    suspects.receive({"rows": [1, 2]})
    suspects.record_death(signal.SIGABRT)
    suspects.record_death(signal.SIGABRT)  # not the second in turn
    with pytest.raises(ModelError, match="died of SIGABRT 2 times before the model had any row"):
        suspects.record_death(signal.SIGABRT)


def test_a_frozen_batch_is_repeated_once_and_then_given_up():
    suspects = Suspects()
    suspects.receive({"run": RUN, "frozen": True, "positions": 1000, "rows": [4, 5, 6]})
    assert suspects.record_death(signal.SIGABRT) == ("the process died of SIGABRT with 3 rows in the model", "it starts again")
    suspects.receive({"rows": [1, 2, 3]})
    suspects.record_death(signal.SIGABRT)  # another batch
    assert suspects.orders["suspect_groups"] == {}
    suspects.receive({"rows": [1, 2, 3]})
    with pytest.raises(ModelError, match=r"twice with the same 3 rows in the model \(1, 2, 3\).*batch\.deterministic false"):
        suspects.record_death(signal.SIGABRT)


def test_a_frozen_batch_that_the_system_kills_twice_is_too_large_for_it():
    suspects = Suspects()
    suspects.receive({"run": RUN, "frozen": True, "positions": 1000, "rows": [4, 5, 6]})
    assert suspects.record_death(signal.SIGKILL)[1] == "it starts again"
    suspects.receive({"rows": [4, 5, 6]})
    with pytest.raises(OutOfRoom, match=r"SIGKILL twice with the same 3 rows in the model.*freezes batch\.rows and batch\.tokens"):
        suspects.record_death(signal.SIGKILL)


def test_frozen_batches_that_the_system_kills_one_after_another_are_not_repeated_for_ever():
    suspects = Suspects()
    for first in (0, 10):
        suspects.receive({"run": RUN, "frozen": True, "positions": 1000, "rows": [first, first + 1]})
        suspects.record_death(signal.SIGKILL)
    suspects.receive({"rows": [20, 21]})
    with pytest.raises(OutOfRoom, match="SIGKILL 3 times, each time with other rows in the model") as caught:
        suspects.record_death(signal.SIGKILL)
    assert caught.value.exit_code == 6
