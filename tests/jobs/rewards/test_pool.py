"""Reward functions that work, raise, hang, lie and die, in real processes: a group always gets its ratings, and the others theirs."""

import logging
import os
import threading
from pathlib import Path

import pytest
from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.pool import Group, RewardPool
from mlx_bulk.runner.pipeline.job import Ratings

from ..support.reward_ratings import PAIR, named, rated, written

SOON = 0.25  # seconds, of functions that never answer


def test_functions_get_the_arguments_of_trl(tmp_path: Path):
    file = written(
        tmp_path,
        """
        import json

        def all_of_it(prompts, completions, completion_ids, **columns):
            expected = [["1 + 1?"] * 2, ["2", "3"], [[5, 1], [6, 1]], {"answer": ["2", "2"], "level": [3, 3]}]
            assert [prompts, completions, completion_ids, columns] == expected, [prompts, completions, completion_ids, columns]
            return [1.0, 0.0]

        def some_of_it(completions, answer):
            return [float(a == b) for a, b in zip(completions, answer)]

        def trainers(completions, log_extra, log_metric, trainer_state=3):
            log_extra("column", completions)
            log_metric("name", 1.0)
            return [2 if trainer_state is None else 3] * 2

        class Callable:
            async def __call__(self, completions, **kw):
                return [0.5, None]

        an_object = Callable()

        async def awaits(completions, **kw):
            import asyncio
            return await asyncio.gather(*[asyncio.sleep(0, float(c)) for c in completions])
        """,
    )
    names = ["all_of_it", "some_of_it", "trainers", "an_object", "awaits"]
    found = rated(named(*(f"{file}:{name}" for name in names)))
    assert found.errors == {name: [None, None] for name in names}
    assert list(found.rewards.values()) == [[1.0, 0.0], [1.0, 0.0], [2.0, 2.0], [0.5, None], [2.0, 3.0]]


def test_columns_named_like_other_arguments_are_left_out(tmp_path: Path):
    file = written(tmp_path, "def f(prompts, completions, completion_ids, **columns): return [len(columns), 'x' in columns]")
    group = Group("p", ["a", "b"], [[1], [2]], {"prompt": 1, "completion": 2, "prompts": 3, "trainer_state": 4, "x": 5})
    assert rated(named(f"{file}:f"), group).rewards == {"f": [1.0, 1.0]}


# The body of a function, the rewards of a pair by it, and their errors.
FAILING: dict[str, tuple[list[float | None], list[str | None]]] = {
    "raise ValueError('no such\\nthing')": ([None, None], ["exception: ValueError: no such\nthing (rewards.py, line 3)"] * 2),
    "import sys; sys.exit(3)": ([None, None], ["exception: SystemExit: 3 (rewards.py, line 3)"] * 2),
    "return input()": ([None, None], ["exception: EOFError: EOF when reading a line (rewards.py, line 3)"] * 2),
    "while True: pass": ([None, None], ["timeout: no answer within 0.25 seconds"] * 2),
    "return [1.0]": ([None, None], ["length: returned 1 rewards for 2 completions"] * 2),
    "return 1.0": ([None, None], ["type: returned float 1.0; expected a list with a number or None for each completion"] * 2),
    "return [float('nan'), 2]": ([None, 2.0], ["nan: the reward is not a number", None]),
    "return [float('inf'), 1e39]": ([None, None], ["infinite: the reward is infinite, or beyond what float32 holds"] * 2),
    "return ['1', True]": ([None, 1.0], ["type: str '1' among the rewards; expected a number or None", None]),
    "return [None, 10**400]": ([None, None], [None, "infinite: the reward is infinite, or beyond what float32 holds"]),
    "import os; os._exit(9)": ([None, None], ["died: its process ended with exit code 9"] * 2),
    "import ctypes; ctypes.string_at(0)": ([None, None], ["died: its process was ended by SIGSEGV"] * 2),
    "raise ValueError(chr(0xd800))": ([None, None], ["exception: ValueError: \\ud800 (rewards.py, line 3)"] * 2),
}


@pytest.fixture(scope="module")
def twice_rated(tmp_path_factory: pytest.TempPathFactory) -> list[Ratings]:
    """The ratings of two groups by each failing function and one around it on each side, in one process where none ends it."""
    rewards: list[RewardConfig] = []
    for number, body in enumerate(FAILING):
        file = written(
            tmp_path_factory.mktemp("failing"),
            f"def before(completions): return [1, 2]\ndef wrong(completions, **kw):\n    {body}\ndef after(completions): return [3, 4]",
        )
        for name in ("before", "wrong", "after"):
            # On a busy machine any call may take long: only the one that never answers has no longer.
            timeout = SOON if name == "wrong" and "while True" in body else 60
            rewards.append(RewardConfig(fn=f"{file}:{name}", name=f"{name}_{number}", timeout=timeout))
    pool = RewardPool(find_functions(rewards), 1)
    try:
        return [pool.rate(PAIR).result(60) for _ in range(2)]  # the second time in the process that took the place of the first
    finally:
        pool.close()


@pytest.mark.parametrize("body", FAILING)
def test_a_failed_reward_is_null_with_its_reason_and_the_others_go_on(twice_rated: list[Ratings], body: str):
    number, (rewards, said) = list(FAILING).index(body), FAILING[body]
    for found in twice_rated:
        assert [found.rewards[f"{name}_{number}"] for name in ("before", "wrong", "after")] == [[1.0, 2.0], rewards, [3.0, 4.0]]
        assert [found.errors[f"{name}_{number}"] for name in ("before", "wrong", "after")] == [[None, None], said, [None, None]]


def test_the_first_failure_of_each_function_and_kind_is_said_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = written(
        tmp_path,
        """
        def raises(completions): raise ValueError(completions[0] + chr(10) + "more")
        def works(completions): return [1, None]
        def two(completions): return [float("nan"), float("inf")]
        """,
    )
    pool = RewardPool(find_functions(named(*(f"{file}:{name}" for name in ("raises", "works", "two")))), 1)
    try:
        for _ in range(3):
            pool.rate(PAIR).result(60)
    finally:
        pool.close()
    assert [record.message.partition(" (no reward there")[0] for record in caplog.records if record.levelno == logging.WARNING] == [
        "reward raises: exception: ValueError: 2\\nmore (rewards.py, line 2)",
        "reward two: nan: the reward is not a number",
        "reward two: infinite: the reward is infinite, or beyond what float32 holds",
    ]


def test_an_awaited_function_that_never_ends_is_ended(tmp_path: Path):
    file = written(tmp_path, "import asyncio\nasync def f(completions):\n    await asyncio.Event().wait()")
    assert rated(named(f"{file}:f", timeout=SOON)).errors == {"f": ["timeout: no answer within 0.25 seconds"] * 2}


def test_arrays_and_numbers_of_libraries_are_numbers(tmp_path: Path):
    file = written(
        tmp_path,
        """
        def array(completions):
            import numpy as np
            return np.array([0.25, np.nan])

        def scalars(completions):
            import numpy as np
            return (np.float64(0.5), np.bool_(True))
        """,
    )
    found = rated(named(f"{file}:array", f"{file}:scalars"))
    assert found.rewards == {"array": [0.25, None], "scalars": [0.5, 1.0]}
    assert found.errors["array"][1] == "nan: the reward is not a number"


def test_one_function_cannot_change_what_another_is_given(tmp_path: Path):
    file = written(
        tmp_path,
        """
        def spoils(completions, **kw):
            completions.clear()
            return [0, 0]

        def reads(completions, **kw):
            return [len(completions)] * 2
        """,
    )
    assert rated(named(f"{file}:spoils", f"{file}:reads")).rewards["reads"] == [2.0, 2.0]


def test_workers_have_neither_mlx_nor_numpy_nor_the_engine_and_hash_alike(tmp_path: Path):
    file = written(
        tmp_path,
        """
        import sys

        def heavy(completions):
            return [sum(name.split(".")[0] in {"mlx", "numpy", "mlx_bulk", "pyarrow", "pydantic"} for name in sys.modules)] * 2

        def hashes(completions):
            return [hash("a set of strings is walked through by this") % 1000003] * 2
        """,
    )
    found = [rated(named(f"{file}:heavy", f"{file}:hashes")).rewards for _ in range(2)]
    assert found[0]["heavy"] == [0.0, 0.0]
    assert found[0]["hashes"] == found[1]["hashes"]


def test_groups_are_rated_at_once_and_each_gets_its_own(tmp_path: Path):
    """Two functions that wait for each other through a pipe can only end if both run at the same time."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = written(
        tmp_path, "def f(completions, mode, fifo):\n    open(fifo[0], mode[0]).close()\n    return [len(c) for c in completions]"
    )
    pool = RewardPool(find_functions(named(f"{file}:f", timeout=60)), 2)
    try:
        futures = [pool.rate(Group("p", ["a" * n], [[1]], {"mode": mode, "fifo": str(fifo)})) for n, mode in ((1, "r"), (2, "w"))]
        assert [future.result(60).rewards["f"] for future in futures] == [[1.0], [2.0]]
    finally:
        pool.close()


class Heard(logging.Handler):
    """Knows when all ``words`` have come."""

    def __init__(self, *words: str):
        super().__init__()
        self._words, self.all = set(words), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._words -= {word for word in self._words if word in record.getMessage()}
        if not self._words:
            self.all.set()


def test_prints_of_functions_go_into_the_log_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture):
    file = written(tmp_path, "import os\ndef f(completions):\n    print('said'); os.system('echo by a child'); return [1, 1]")
    heard = Heard("said", "by a child")
    with caplog.at_level("DEBUG", "mlx_bulk"):
        logging.getLogger("mlx_bulk").addHandler(heard)
        rated(named(f"{file}:f"))
        assert heard.all.wait(60)
        logging.getLogger("mlx_bulk").removeHandler(heard)
    assert capfd.readouterr() == ("", "")


def test_built_ins_are_rated_like_any_other():
    rewards = [
        RewardConfig(fn="last_number", args={"column": "answer"}),
        RewardConfig(fn="exact_match", name="exact", args={"column": "answer"}),
        RewardConfig(fn="regex", args={"pattern": "^3$"}),
        RewardConfig(fn="json_valid"),
        RewardConfig(fn="length", args={"per": 4}, weight=-0.1),
    ]
    found = rated(rewards)
    assert found.errors == {name: [None, None] for name in ("last_number", "exact", "regex", "json_valid", "length")}
    assert list(found.rewards.values()) == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5]]
