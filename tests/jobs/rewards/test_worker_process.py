"""The processes of the rewards: they start again, begin with the functions that the run began with, and end with the run."""

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.jobs.rewards import pool as reward_pool
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.pool import Group, RewardPool
from mlx_bulk.jobs.rewards.worker_process import Worker, WorkerDied, WorkerHangs
from mlx_bulk.runner.core.errors import DataError

from ..support.reward_ratings import PAIR, named, rated, written


def test_a_file_that_changes_under_a_run_ends_it(tmp_path: Path):
    """Null rewards could never be had again: rows that have them are no errors, and the changed file is drift."""
    file = written(tmp_path, "def f(completions): return [1, 1]")
    functions = find_functions(named(f"{file}:f"))
    written(tmp_path, "def f(completions): return [2, 2]")
    pool = RewardPool(functions, 1)
    try:
        with pytest.raises(DataError, match=r"rewards.py: changed while the run worked.*put the file back, then continue") as caught:
            pool.rate(PAIR).result(60)
        assert caught.value.exit_code == 5
        written(tmp_path, "def f(completions): return [1, 1]")
        assert pool.rate(PAIR).result(60).rewards == {"f": [1.0, 1.0]}
    finally:
        pool.close()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(24, "Too many open files"), marks=pytest.mark.slow),
        WorkerDied("its process was ended by SIGKILL"),
        pytest.param(WorkerHangs(), marks=pytest.mark.slow),
    ],
)
def test_a_process_that_cannot_be_started_is_tried_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception):
    functions = find_functions(named(f"{written(tmp_path, 'def f(completions): return [1, 1]')}:f"))
    fails = [2, 3]  # times, of each group

    def load(worker: Worker, places: Sequence[str]) -> list[dict[str, Any]]:
        if fails[0]:
            fails[0] -= 1
            raise error
        return real(worker, places)

    real = Worker.load
    monkeypatch.setattr(Worker, "load", load)
    monkeypatch.setattr(reward_pool, "START_PAUSES", (0.0, 0.0))
    pool = RewardPool(functions, 1)
    try:
        assert pool.rate(PAIR).result(60).rewards == {"f": [1.0, 1.0]}
    finally:
        pool.close()
    del fails[0]
    pool = RewardPool(functions, 1)
    try:
        with pytest.raises(DataError, match=f"3 times in a row: {str(error) or 'importing them hangs'}.".replace("[", r"\[")):
            pool.rate(PAIR).result(60)
    finally:
        pool.close()


def test_closing_does_not_wait_for_another_try_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    functions = find_functions(named(f"{written(tmp_path, 'def f(completions): return [1, 1]')}:f"))
    tried = threading.Event()

    def load(worker: Worker, places: Sequence[str]) -> list[dict[str, Any]]:
        tried.set()
        raise WorkerDied

    monkeypatch.setattr(Worker, "load", load)
    monkeypatch.setattr(reward_pool, "START_PAUSES", (600.0,))
    pool = RewardPool(functions, 1)
    waiting = pool.rate(PAIR)
    assert tried.wait(60)
    pool.close()
    assert not waiting.done()


def test_closing_does_not_wait_and_leaves_no_process(tmp_path: Path):
    """The function and its child hold a pipe open; its end is read when both are gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = written(
        tmp_path,
        """
        import os

        def f(completions, fifo):
            end = os.open(fifo[0], os.O_WRONLY)
            os.set_inheritable(end, True)
            os.write(end, b"here")
            os.system("sleep 600")
        """,
    )
    pool = RewardPool(find_functions(named(f"{file}:f", timeout=600)), 1)
    hanging = pool.rate(Group("p", ["a"], [[1]], {"fifo": str(fifo)}))
    waiting = pool.rate(PAIR)
    with fifo.open() as end:
        assert end.read(4) == "here"
        begun = time.monotonic()
        pool.close()
        assert time.monotonic() - begun < 30
        assert end.read() == ""
    assert not hanging.done()
    assert not waiting.done()


@pytest.mark.slow
@pytest.mark.parametrize(
    "hangs",
    [
        "while True: pass",
        "re.match(r'(a+)+$', 'a' * 40 + 'b')",  # holds the interpreter's lock: no other thread of the process runs
        "subprocess.Popen(['sleep', '600'], pass_fds=[end]); sys.exit()",
    ],
)
def test_a_hanging_function_ends_with_the_run(tmp_path: Path, hangs: str):
    """The function, and what it started, hold a pipe open; its end is read when all are gone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = written(
        tmp_path,
        f"""
        import os, re, subprocess, sys

        def f(completions, fifo):
            end = os.open(fifo[0], os.O_WRONLY)
            os.write(end, b"%d\\n" % os.getpgid(0))
            {hangs}
        """,
    )
    script = f"""
import time
from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.pool import Group, RewardPool
pool = RewardPool(find_functions([RewardConfig(fn={f"{file}:f"!r}, timeout=600)]))
pool.rate(Group("p", ["a"], [[1]], {{"fifo": {str(fifo)!r}}})).result()
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as run, fifo.open() as end:
        group = int(end.readline())
        try:
            run.send_signal(signal.SIGKILL)
            assert select.select([end], [], [], 60)[0], "they are still at work"
            assert end.read() == ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def test_a_function_can_wait_for_all_its_children(tmp_path: Path):
    source = """
    import os

    def f(completions):
        try:
            os.wait()
        except ChildProcessError:
            return [1, 1]
    """
    assert rated(named(f"{written(tmp_path, source)}:f", timeout=60)).rewards == {"f": [1.0, 1.0]}


def test_ctrl_c_is_not_for_reward_functions(tmp_path: Path):
    """They are in a session of their own; a signal to the run's group does not reach them."""
    file = written(tmp_path, "import os\ndef f(completions): return [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()]")
    assert rated(named(f"{file}:f")).rewards == {"f": [1.0, 1.0]}


def test_a_copy_of_the_runs_pipes_keeps_no_worker_alive(caplog: pytest.LogCaptureFixture):
    """A trainer forks too, say for its data: what it forks holds the pipe by whose end a worker sees that the run has ended."""
    worker: Any = Worker()
    worker.load(["json:loads"])
    os.set_inheritable(worker._life, True)
    with subprocess.Popen(["sleep", "600"], pass_fds=[worker._life]) as holder:
        try:
            worker.close()
        finally:
            holder.kill()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
