"""Reward functions that fork, or write where answers are read: each reward stays that of its own function and group."""

import os
import select
from pathlib import Path

import pytest
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.pool import Group, RewardPool
from mlx_bulk.runner.pipeline.job import Ratings

from ..support.reward_ratings import named, written

# Two innocent functions stand around one that does what ``{wild}`` says; each tells its group's size and itself apart.
SOURCE = """
import asyncio, ctypes, json, os, sys, threading, time

def pipes():
    for end in map(int, os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")):
        try:
            os.readlink(f"/proc/self/fd/{end}").startswith("pipe:") and end > 2 and os.write(end, JUNK)
        except OSError:
            pass

JUNK = b""

def before(completions, size, **kw): return [size[0] + 0.25] * len(completions)

IS_ASYNC def wild(completions, size, **kw):
    WILD
    return [5.0] * len(completions)

def after(completions, size, **kw): return [size[0] + 0.5] * len(completions)
"""


def _rated(folder: Path, wild: str, groups: int = 4, wild_is: str = "") -> list[Ratings]:
    """Rates groups of different sizes, one after the other, in one process."""
    file = written(folder, SOURCE.replace("IS_ASYNC ", wild_is).replace("WILD", wild.replace("\n", "\n    ")))
    pool = RewardPool(find_functions(named(*(f"{file}:{name}" for name in ("before", "wild", "after")), timeout=30)), 1)
    try:
        sizes = [1 + number % 3 for number in range(groups)]
        return [pool.rate(Group("p", ["a"] * size, [[1]] * size, {"size": size})).result(60) for size in sizes]
    finally:
        pool.close()


def _innocent(found: list[Ratings]) -> None:
    for number, ratings in enumerate(found):
        size = 1 + number % 3
        assert ratings.rewards["before"] == [size + 0.25] * size
        assert ratings.rewards["after"] == [size + 0.5] * size
        assert ratings.errors["before"] == ratings.errors["after"] == [None] * size


WILD = (
    "if os.fork() == 0: raise RuntimeError('of the child')",
    "if os.fork() == 0: return [7.0] * len(completions)",
    "if os.fork() == 0: sys.exit(3)",
    # past Python's own fork, so that no hook of Python's runs
    "if ctypes.CDLL(None).fork() == 0: return [7.0] * len(completions)",
    "child = os.fork()\nif child == 0: raise RuntimeError\nassert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1",
    "child = os.fork()\nif child == 0: sys.exit(3)\nassert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3",
    "child = os.fork()\nif child == 0: return []\nassert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0",
)
QUICK = (("", WILD[0]), ("", WILD[3]), ("", WILD[5]), ("async ", WILD[1]))


@pytest.mark.parametrize(
    ("wild_is", "wild"),
    [
        pytest.param(wild_is, wild, marks=() if (wild_is, wild) in QUICK else pytest.mark.slow)
        for wild_is in ("", "async ")
        for wild in WILD
    ],
)
def test_a_child_that_comes_back_answers_nothing(tmp_path: Path, wild_is: str, wild: str):
    found = _rated(tmp_path, wild, wild_is=wild_is)
    _innocent(found)
    assert {reward for ratings in found for reward in ratings.rewards["wild"]} == {5.0}


def test_a_child_that_comes_back_from_an_import_answers_nothing(tmp_path: Path):
    file = written(tmp_path, "import os\nos.fork()\ndef f(completions): return [1.0]\ndef g(completions): return [2.0]")
    pool = RewardPool(find_functions(named(f"{file}:f", f"{file}:g")), 1)
    try:
        for _ in range(3):
            assert pool.rate(Group("p", ["a"], [[1]], {})).result(60).rewards == {"f": [1.0], "g": [2.0]}
    finally:
        pool.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds the pipes in /proc")
@pytest.mark.parametrize(
    "line",
    [
        '{"rewards": [9.0], "errors": [null]}',
        pytest.param('{"number": 1, "answer": {"rewards": [9.0], "errors": [null]}}', marks=pytest.mark.slow),
        pytest.param("no JSON", marks=pytest.mark.slow),
        pytest.param("17", marks=pytest.mark.slow),
    ],
)
def test_a_surplus_answer_means_a_dead_worker(tmp_path: Path, line: str):
    """A function that writes into the pipe harms itself alone: those after it are called in another process."""
    found = _rated(tmp_path, f"global JUNK\nJUNK = {(line + chr(10)).encode()!r}\npipes()", groups=3)
    _innocent(found)
    assert not any(9.0 in ratings.rewards["wild"] for ratings in found)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds the pipes in /proc")
def test_a_late_answer_goes_to_no_other_group(tmp_path: Path):
    """A child writes after its parent has answered, when another function may wait for its own answer."""
    late = "global JUNK\nJUNK = b'17\\n'\nthreading.Thread(target=lambda: (time.sleep(len(completions) / 50), pipes())).start()"
    _innocent(_rated(tmp_path, late, groups=12))


def test_a_child_that_lives_on_does_not_hide_the_workers_death(tmp_path: Path):
    """It holds copies of the pipes; without them the death is seen at once, not at the timeout."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    wild = f"os.open({str(fifo)!r}, os.O_WRONLY)\nif os.fork() == 0: time.sleep(600)\nos._exit(9)"
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = _rated(tmp_path, wild, groups=2)
        _innocent(found)
        assert {error for ratings in found for error in ratings.errors["wild"]} == {"died: its process ended with exit code 9"}
        assert select.select([end], [], [], 60)[0], "the child lives on"
        assert os.read(end, 1) == b""
    finally:
        os.close(end)
