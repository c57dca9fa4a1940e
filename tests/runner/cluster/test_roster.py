"""Tests when a run without workers ends, and with which words."""

import json
import sys
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.cluster.interface import ORPHAN_SECONDS, Joined
from mlx_bulk.runner.cluster.messages import Figures, FromWorker, Hello, LeaseDone, Ready, Unfit
from mlx_bulk.runner.cluster.roster import NoWorkers, Roster, message_fault
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.leasing.row_set import RowSet


def roster(*joined: str, **settings: Any) -> Roster:
    """A roster whose workers have joined and gone; the run began at second 0."""
    made = Roster(ClusterConfig(**settings), 0.0)
    for name in joined:
        made.join(Joined(name, Hello(name, "host", {})), 1.0)
    made.require(list(joined), 10.0)
    return made


@pytest.mark.parametrize(
    ("joined", "settings", "wait"),
    [
        (["a", "b"], {"workers": 2}, ORPHAN_SECONDS),
        (["a", "b"], {"workers": 2, "wait": 5}, 5.0),
        (["a"], {"workers": 2}, 600.0),  # the other one still starts
        (["a", "b"], {"workers": 2, "listen": "127.0.0.1:1"}, 600.0),  # others may join
    ],
)
def test_a_run_waits_for_workers_only_as_long_as_any_can_come(joined: list[str], settings: dict[str, Any], wait: float):
    waits = roster(*joined, **settings)
    waits.require([], 100.0)
    waits.require([], 100.0 + wait)
    with pytest.raises(NoWorkers, match="what was finished is safe") as caught:
        waits.require([], 100.1 + wait)
    assert caught.value.exit_code == 75
    assert ("all workers of this machine have ended" in str(caught.value)) == (len(joined) == 2 and "listen" not in settings)


def test_a_worker_that_comes_back_ends_the_wait():
    waits = roster("a", workers=1)
    waits.require([], 100.0)
    waits.require(["a"], 110.0)
    waits.require([], 120.0)
    waits.require([], 120.0 + ORPHAN_SECONDS)
    with pytest.raises(NoWorkers):  # a new wait has begun, as long as the first
        waits.require([], 120.1 + ORPHAN_SECONDS)


def test_rows_that_a_worker_has_died_with_go_to_another_one_first():
    waits = roster("a", "b", workers=2)
    rows = RowSet(0, [], died=("host",))
    assert waits.suits("a", rows, ["a", "b"])  # both are of this machine
    waits.join(Joined("c", Hello("c", "other", {})), 1.0)
    assert not waits.suits("a", rows, ["a", "b", "c"])
    assert waits.suits("c", rows, ["a", "b", "c"])
    assert waits.suits("a", rows, ["a", "b"])  # the other one has left
    assert waits.suits("a", RowSet(0, [], died=("host", "other")), ["a", "b", "c"])


def test_rows_wait_for_the_worker_with_the_most_room_as_long_as_it_may_come_back():
    waits = roster("a", "b", workers=2)
    assert waits.longest(0.0) == sys.maxsize  # neither has loaded the model
    waits.workers["a"].longest = 100
    assert waits.longest(0.0) == sys.maxsize
    waits.workers["b"].longest, waits.workers["b"].left = 300, 10.0
    assert (waits.longest(609.0), waits.longest(611.0)) == (300, 100)
    rows = RowSet(0, [], beyond=100)
    assert not waits.suits("a", rows, ["a", "b"])
    assert waits.suits("b", rows, ["a", "b"])
    waits.workers["b"].refused = "another version"
    assert waits.longest(11.0) == 100


def test_a_shard_goes_to_workers_that_have_not_said_that_it_is_too_large():
    waits = roster("a", workers=2, wait=5.0)
    waits.join(Joined("b", Hello("b", "other", {})), 1.0)
    for worker in waits.workers.values():
        worker.longest = 10
    rows = RowSet(0, [], no_room={"host": "it is small"})
    assert [waits.suits(name, rows, ["a", "b"]) for name in ("a", "b")] == [False, True]
    died = RowSet(0, [], no_room={"host": "it is small"}, died=("other",))
    assert waits.suits("b", died, ["a", "b"])  # the only one that can
    assert waits.may_hold(rows, 0.0)
    waits.workers["b"].left = 0.0
    assert (waits.may_hold(rows, 4.0), waits.may_hold(rows, 5.0)) == (True, False)  # it may come back
    assert not waits.may_hold(RowSet(0, [], no_room={"host": "", "other": ""}), 0.0)


def ready(facts: Any) -> Ready:
    return Ready("run", json.dumps(facts))


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (ready({"batch": {"rows": 4}, "halved": 1}), ""),
        (ready({}), ""),
        (ready({"batch": {"rows": 0}}), "found a batch without a number of rows"),
        (ready({"batch": {"rows": 10**400}}), "found a batch without a number of rows"),
        (Ready("run", "[" * 200_000), "found values in one another without an end"),
        (Ready("run", "{}", -1), "found a number below 0"),
        (Figures("run", {"steps": 3}), ""),
        (Figures("run", {"steps": 10**400}), "found a count below 0, or one that is too large"),
        (Unfit("run", 9, ""), ""),
        (Unfit("run", 10, ""), "the run has no row 10"),
        (Hello("a", "host", {}, "run", {"x": [0, 9], "y": []}), ""),
        (Hello("a", "host", {}, "run", {"x": [0, -1]}), "the run has no row -1"),
        (LeaseDone("run", "whatever"), ""),
    ],
)
def test_what_is_wrong_with_a_message_is_said(message: FromWorker, found: str):
    fault = message_fault(message, Layout(10, 4))
    assert fault == (
        f"sent {type(message).__name__}, which cannot be right ({found}); install the same version of mlx-bulk" if found else ""
    )
