"""What is wrong with a reward function is said before anything is started: which file, which line, and the fix."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.jobs.rewards.functions import find_functions, function_fingerprints, require_columns
from mlx_bulk.runner.core.errors import DataError

from ..support.reward_ratings import named, rated, written


def refused(rewards: list[RewardConfig]) -> str:
    with pytest.raises(ConfigError) as caught:
        find_functions(rewards)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_this_name\ndef f(completions): ...", "line 1: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("\n\ndef f(completions:\n    return 1", "line 3: SyntaxError: '(' was never closed"),
        ("x = 1\ny = x / 0\ndef f(completions): ...", "line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(1)", "line 2: SystemExit: 1"),
        ("def g(completions): ...\ndef h(completions): ...\nf = 3", "defines no function 'f'; it has g, h"),
        ("def f(completions, /): ...", "f takes 'completions' by position only"),
        ("import os\nos._exit(7)", "ended the process that did: its process ended with exit code 7"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, source: str, said: str):
    file = written(tmp_path, source)
    message = refused(named(f"{file}:f"))
    assert said in message
    assert str(file) in message


def test_a_file_that_is_not_there(tmp_path: Path):
    assert f"rewards[1].fn: {tmp_path}/no.py: no such file" in refused([RewardConfig(fn="length"), RewardConfig(fn=f"{tmp_path}/no.py:f")])


def test_an_error_below_a_file_names_the_line_where_it_is(tmp_path: Path):
    beside = written(tmp_path, "raise RuntimeError('deep')", "beside.py")
    file = written(tmp_path, "import beside\ndef f(completions): ...")
    assert f"{beside}, line 1: RuntimeError: deep" in refused(named(f"{file}:f"))


def test_modules_are_imported_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path, "", "own/__init__.py")
    file = written(tmp_path, "def f(completions): return [1.0, 2.0]", "own/rewards.py")
    monkeypatch.chdir(tmp_path)
    [found] = find_functions(named("own.rewards:f"))
    assert function_fingerprints([found]) == {"f": f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"}
    assert rated(named("own.rewards:f")).rewards == {"f": [1.0, 2.0]}
    assert "ModuleNotFoundError: No module named 'owm'" in refused(named("owm.rewards:f"))


def test_the_fingerprint_follows_the_files_content(tmp_path: Path):
    file = written(tmp_path, "def f(completions): return [1, 1]")
    before = function_fingerprints(find_functions(named(f"{file}:f")))
    written(tmp_path, "def f(completions): return [2, 2]")
    assert function_fingerprints(find_functions(named(f"{file}:f"))) != before


@pytest.mark.parametrize(
    ("fn", "args", "said"),
    [
        ("last_number", {}, "rewards[0].args.column: missing; expected the column (or dotted path) that holds the answer"),
        ("last_number", {"colum": "a"}, "rewards[0].args.colum: last_number has no such parameter; did you mean column?"),
        ("exact_match", {"column": "a", "ignore_case": "no"}, 'rewards[0].args.ignore_case: found "no"; expected true or false'),
        ("regex", {"pattern": "(a"}, 'rewards[0].args.pattern: found "(a"; expected a regular expression'),
        ("length", {"per": 0}, "rewards[0].args.per: found 0; expected a number of tokens above 0"),
        ("length", {"over": True}, "rewards[0].args.over: found true; expected a whole number of tokens"),
        ("length", {"completion_ids": []}, "rewards[0].args.completion_ids: is given to every function"),
        ("json_valid", {"strict": True}, "rewards[0].args.strict: json_valid has no such parameter; it takes none"),
    ],
)
def test_args_of_built_ins(fn: str, args: dict[str, Any], said: str):
    assert said in refused([RewardConfig(fn=fn, args=args)])


def test_args_of_a_users_function(tmp_path: Path):
    file = written(
        tmp_path, "def f(completions, scale=1.0): return [scale] * len(completions)\ndef g(completions, **kw): return [kw['x']] * 2"
    )
    said = refused([RewardConfig(fn=f"{file}:f", args={"scael": 2})])
    assert said == f"rewards[0].args.scael: {file}:f has no such parameter; did you mean scale?"
    assert rated([RewardConfig(fn=f"{file}:f", args={"scale": 3}), RewardConfig(fn=f"{file}:g", args={"x": 4})]).rewards == {
        "f": [3.0, 3.0],
        "g": [4.0, 4.0],
    }


@pytest.mark.slow
def test_columns_that_no_row_has(tmp_path: Path):
    file = written(tmp_path, "def f(completions, anser, level=1, **kw): ...\ndef g(prompts, log_extra, trainer_state): ...")
    with pytest.raises(DataError, match=r"rewards\[0\].fn: f has a parameter 'anser': no row has a column 'anser'. Did you mean 'answer'"):
        require_columns(find_functions(named(f"{file}:f")), ["answer", "question"])
    with pytest.raises(DataError, match=r"rewards\[0\].args.column: no row has a column 'anser'. Did you mean 'answer'"):
        require_columns(find_functions([RewardConfig(fn="last_number", args={"column": "anser"})]), ["answer"])
    require_columns(find_functions(named(f"{file}:g")), ["answer"])
    require_columns(find_functions(named(f"{file}:f")), [])  # an empty dataset says nothing
    require_columns(find_functions([RewardConfig(fn="last_number", args={"column": "meta.answer"})]), ["meta"])


def test_a_file_of_the_name_of_a_library_hides_nothing(tmp_path: Path):
    """The file's folder is where its siblings are found; a user's random.py beside it must not take the place of Python's."""
    written(tmp_path, "raise RuntimeError('the wrong one')", "random.py")
    file = written(tmp_path, "import random\ndef f(completions): return [random.Random(1).random()] * 2", "json.py")
    assert rated(named(f"{file}:f")).errors == {"f": [None, None]}


@pytest.mark.slow
def test_a_file_is_run_as_it_is_hashed_though_its_time_and_size_are_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As after a deployment that keeps times: Python's own cache would give the function of the file before."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    for value in (1.0, 2.0):
        file = written(tmp_path, f"def f(completions): return [{value}, {value}]")
        os.utime(file, (1, 1))
        assert function_fingerprints(find_functions(named(f"{file}:f"))) == {"f": f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"}
        assert rated(named(f"{file}:f")).rewards == {"f": [value, value]}
