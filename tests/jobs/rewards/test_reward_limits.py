"""Limits of a reward function: its time, its memory, and for how many groups it may fail."""

import os
import select
from pathlib import Path

import pytest
from mlx_bulk.configs.identity import free, identity
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.rollout import RolloutConfig
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.pool import Group, RewardPool
from mlx_bulk.runner.core.errors import DataError

from ..support.reward_ratings import PAIR, named, rated, written

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="orphans are adopted on Linux alone")


STARTS = {
    "child": "subprocess.Popen(['sleep', '600'], pass_fds=[end])",
    "session": "subprocess.Popen(['sleep', '600'], pass_fds=[end], start_new_session=True)",
    # as servers make themselves: its parent is gone, its session its own
    "daemon": "subprocess.run(['sh', '-c', 'setsid sleep 600 &'], pass_fds=[end])",
}
ENDS = {"hangs": "while True: pass", "dies": "os._exit(9)"}
QUICK = (("child", "dies"), ("daemon", "hangs"))


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        pytest.param(
            starts,
            ends,
            marks=[*([] if starts == "child" else [LINUX]), *([] if (starts, ends) in QUICK else [pytest.mark.slow])],
        )
        for starts in STARTS
        for ends in ENDS
    ],
)
def test_all_that_a_function_started_ends_with_it(tmp_path: Path, starts: str, ends: str):
    """What it started holds a pipe open; its end is read when all are gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    source = f"""
    import os, subprocess

    def f(completions, fifo):
        end = os.open(fifo[0], os.O_WRONLY)
        {STARTS[starts]}
        {ENDS[ends]}
    """
    pool = RewardPool(find_functions(named(f"{written(tmp_path, source)}:f", timeout=0.5)), 1)
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ratings = pool.rate(Group("p", ["a"], [[1]], {"fifo": str(fifo)})).result(60)
        assert select.select([end], [], [], 60)[0], "they are still at work"
        assert os.read(end, 1) == b""
    finally:
        os.close(end)
        pool.close()
    assert ratings.errors["f"] in (["timeout: no answer within 0.5 seconds"], ["died: its process ended with exit code 9"])


@pytest.mark.parametrize("takes", ["os.system(HOG)", pytest.param("full = b'x' * 300_000_000; os.read(pipe, 1)", marks=pytest.mark.slow)])
def test_memory_is_limited_with_that_of_what_a_function_starts(tmp_path: Path, takes: str):
    file = written(
        tmp_path,
        f"""
        import os, sys
        pipe, writes = os.pipe()
        os.set_inheritable(pipe, True)
        HOG = sys.executable + " -c \\"import os; full = b'x' * 300_000_000; os.read(%d, 1)\\"" % pipe

        def f(completions): {takes}

        def g(completions): return [1, 2]
        """,
    )
    found = rated(named(f"{file}:f", memory=0.2) + named(f"{file}:g", memory=0.2))
    assert found.rewards == {"f": [None, None], "g": [1.0, 2.0]}
    error = found.errors["f"][0]
    assert error is not None
    assert error.startswith("memory: its process took 0.")
    assert error.endswith(" GB; expected at most 0.2 GB")


def _rates(folder: Path, on_error: object, *rights: bool) -> int:
    """Rates a group for each of ``rights`` by a function that is right or raises; returns how many got ratings."""
    file = written(folder, "def f(completions, right):\n    assert right[0], 'is wrong'\n    return [1, 1]")
    pool = RewardPool(find_functions(named(f"{file}:f", on_error=on_error)), 1)
    done = 0
    try:
        for right in rights:
            pool.rate(Group("p", ["a", "b"], [[1], [1]], {"right": right})).result(60)
            done += 1
    finally:
        pool.close()
    return done


def test_a_failure_leaves_rewards_out_by_default(tmp_path: Path):
    assert _rates(tmp_path, None, *[False] * 25) == 25


def test_the_first_failure_ends_a_run_that_is_to_fail(tmp_path: Path):
    said = r"rewards\[0\]: f failed, and on_error is fail: exception: AssertionError: is wrong "
    said += r".*continue with the same command; after a change to the function, with --adopt rewards\.f; or set its"
    with pytest.raises(DataError, match=said):
        _rates(tmp_path, "fail", True, False)


def test_a_share_of_failed_groups_ends_a_run(tmp_path: Path):
    """Until 20 groups are rated, failures are counted as among 20, so that the first few decide nothing."""
    assert _rates(tmp_path, 0.1, False, False, *[True] * 18) == 20
    with pytest.raises(DataError, match=r"f failed, as for 3 of 3 groups of this start, and on_error is 0.1"):
        _rates(tmp_path, 0.1, False, False, False)
    with pytest.raises(DataError, match=r"f failed, as for 4 of 31 groups"):
        _rates(tmp_path, 0.1, False, False, *[True] * 27, False, False)


def test_limits_may_change_between_starts_and_begun_runs_keep_their_identity():
    config = {"job": "rollout", "model": {"path": "demo"}, "data": {"path": "x"}, "prompt": {"user": "{{ q }}"}, "output": {"path": "o"}}
    before = load_config({**config, "rewards": [{"fn": "length"}]})
    after = load_config({**config, "rewards": [{"fn": "length", "memory": 1.5, "on_error": "fail"}]})
    assert isinstance(before, RolloutConfig)
    assert isinstance(after, RolloutConfig)
    assert identity(before) == identity(after)
    assert identity(before)["rewards"] == [{"fn": "length", "weight": 1.0, "name": None, "args": {}, "timeout": 60.0}]
    assert free(after)["rewards[0].memory"] == 1.5
    assert free(after)["rewards[0].on_error"] == "fail"


def test_a_file_that_changes_is_noticed_though_its_process_goes_on(tmp_path: Path):
    file = written(tmp_path, "def f(completions): return [1, 1]")
    pool = RewardPool(find_functions(named(f"{file}:f")), 1)
    try:
        assert pool.rate(PAIR).result(60).rewards == {"f": [1.0, 1.0]}
        file.touch()  # the same text, saved again
        assert pool.rate(PAIR).result(60).rewards == {"f": [1.0, 1.0]}
        written(tmp_path, "def f(completions): return [2.0, 2.0]")
        with pytest.raises(DataError, match=r"rewards.py: changed while the run worked"):
            pool.rate(PAIR).result(60)
        file.unlink()
        with pytest.raises(DataError, match=r"rewards.py: changed while the run worked"):
            pool.rate(PAIR).result(60)
    finally:
        pool.close()
