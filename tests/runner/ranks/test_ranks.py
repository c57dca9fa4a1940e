"""What ranks tell each other. They are threads here; tests/commands/test_group_run.py has processes."""

import platform
import threading
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.ranks.joined_group import require_alike
from mlx_bulk.runner.ranks.lockstep import SharedInput
from mlx_bulk.runner.ranks.ranks import ALONE, Ranks

from ..support.thread_ranks import on_all


@pytest.mark.parametrize("value", [None, [], {"rows": list(range(3000))}, "é" * 500])
def test_all_ranks_get_what_the_first_has(value: Any):
    assert on_all(3, lambda ranks: ranks.share(value if ranks.first else "mine")) == [value] * 3


def test_each_rank_gets_what_all_have():
    assert on_all(3, lambda ranks: ranks.gather("x" * (1 + 7 * ranks.rank))) == [["x", "x" * 8, "x" * 15]] * 3


def test_a_process_alone_exchanges_nothing():
    assert (ALONE.share(5), ALONE.gather(5), ALONE.flag(5), ALONE.wait_for(lambda: 5), ALONE.beside, ALONE.several) == (
        5,
        [5],
        5,
        5,
        1,
        False,
    )


def test_an_error_of_one_rank_is_raised_on_all_and_names_it():
    def load(ranks: Ranks) -> Any:
        def work() -> None:
            if ranks.rank == 1:
                raise ModelError("model.path: /models/qwen is not there")

        return ranks.jointly(work)

    errors = on_all(2, load)
    assert [type(error) for error in errors] == [ModelError] * 2
    assert {str(error) for error in errors} == {f"rank 1 ({platform.node()}): model.path: /models/qwen is not there"}


def test_the_others_wait_until_the_first_has_something():
    come = threading.Event()

    def work(ranks: Ranks) -> tuple[str, bool]:
        if ranks.rank == 1:
            threading.Timer(0.3, come.set).start()

        def get() -> str:
            assert ranks.first
            come.wait()
            return "a lease"

        before = ranks.beats
        return ranks.wait_for(get), ranks.beats > before + 2  # all show that they are there

    assert on_all(2, work) == [("a lease", True)] * 2


def test_windows_and_the_end_are_the_first_ranks():
    def work(ranks: Ranks) -> list[Any]:
        windows = iter([[], [1, 2], [3], None])
        stops = iter([False, False, False, True])

        def own(kind: Any) -> Any:
            assert ranks.first, "only the first rank has rows"
            return next(kind)

        shared = SharedInput[int](ranks, lambda wait: own(windows), lambda: own(stops))
        seen: list[Any] = [shared.stopped(), shared.next_window(False)]  # nothing there
        seen += [shared.stopped(), shared.stopped(), shared.next_window(False), shared.next_window(False)]  # one is held, and given once
        return [*seen, shared.next_window(True), shared.stopped(), shared.next_window(True)]

    assert on_all(2, work) == [[False, [], False, False, [1, 2], [], [3], True, None]] * 2


def test_machines_that_differ_are_no_group(monkeypatch: pytest.MonkeyPatch):
    assert on_all(2, require_alike) == [None, None]
    own = threading.local()
    monkeypatch.setattr("mlx_bulk.runner.ranks.joined_group.version", lambda name: getattr(own, "version", "1"))

    def work(ranks: Ranks) -> None:
        own.version = "2" if ranks.rank else "1"
        require_alike(ranks)

    here = platform.node()
    for error in on_all(2, work):
        assert f"mlx: rank 0 ({here}) has 1, rank 1 ({here}) 2" in str(error)


def test_ranks_on_one_machine_share_its_memory():
    assert on_all(3, lambda ranks: ranks.beside) == [3, 3, 3]
