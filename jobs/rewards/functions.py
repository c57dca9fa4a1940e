"""Finds and checks the reward functions of a config before anything starts, so that a mistake costs no model load.

A worker process imports them, never this one. Knows the parameters of functions; nothing of groups or policies.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...configs.errors import ConfigError
from ...configs.explain import shown
from ...configs.fields import nearest
from ...configs.rewards import RewardConfig
from ...runner.core.errors import DataError
from ...runner.data.column_paths import missing_column, require_column
from ...runner.pipeline.job import ConfigFiles
from .builtin_rewards import VERSIONS
from .worker_process import START_SECONDS, Worker, WorkerDied, WorkerHangs

# Arguments of a function besides the columns. A column of such a name is not passed on, as in TRL.
GIVEN = ("prompts", "completions", "completion_ids")
RESERVED = frozenset({*GIVEN, "prompt", "completion", "log_extra", "log_metric", "trainer_state"})

_BUILT_IN = Path(__file__).parent / "builtin_rewards.py"
_WORDS = {
    "column": "the column (or dotted path) that holds the answer",
    "pattern": "a regular expression as Python's re reads it",
    "ignore_case": "true or false",
    "over": "a whole number of tokens of at least 0",
    "per": "a number of tokens above 0",
}


@dataclass(slots=True, frozen=True)
class RewardFunction:
    """A function that a worker can load from ``place``: "path.py:name" or "package.module:name". key: its place in the config.

    path, sha256: of its file. takes: its named parameters. needs: those without a default. open: it has **kwargs. beside: files in the
    folder of its file, and below, that importing it has imported, too.
    """

    config: RewardConfig
    key: str
    place: str
    path: str
    sha256: str
    takes: tuple[str, ...]
    needs: tuple[str, ...]
    open: bool
    beside: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name in the records."""
        return self.config.label


def find_functions(rewards: Sequence[RewardConfig]) -> list[RewardFunction]:
    """Returns the functions among a config's rewards. A worker process imports them once and then ends.

    Raises ConfigError with file and line where one cannot be imported, does not exist, or does not take its ``args``.
    """
    named = {f"rewards[{number}]": reward for number, reward in enumerate(rewards) if reward.fn is not None}
    if not named:
        return []
    places = [f"{_BUILT_IN}:{reward.fn}" if reward.built_in else str(reward.fn) for reward in named.values()]
    functions: list[RewardFunction] = []
    for (key, reward), place, about in zip(named.items(), places, _about(places), strict=True):
        if "refused" in about:
            raise ConfigError(f"{key}.fn: {about['refused']}; fix it, or name another function")
        function = RewardFunction(
            reward,
            key,
            place,
            about["path"],
            about["sha256"],
            tuple(about["takes"]),
            tuple(about["needs"]),
            about["open"],
            tuple(about["beside"]),
        )
        _require_args(function, f"{key}.args")
        functions.append(function)
    return functions


def require_columns(functions: Sequence[RewardFunction], columns: Collection[str]) -> None:
    """Raises DataError where a function needs a column that no row has. Checks no user's function where ``columns`` is empty."""
    for function in functions:
        if function.config.built_in:
            if "column" in function.takes:
                require_column(columns, str(function.config.args["column"]), f"{function.key}.args.column")
            continue
        for name in function.needs if columns else ():
            if name not in GIVEN and name not in function.config.args and (name not in columns or name in RESERVED):
                raise missing_column(columns, name, f"{function.key}.fn: {function.label} has a parameter {name!r}")


def function_fingerprints(functions: Sequence[RewardFunction]) -> dict[str, str]:
    """Returns what each function computes by, by its name: a part of a run's identity. It is the sha256 of the function's file.

    Of a built-in function it is the version: the package's file also changes where no value does.
    """
    return {
        function.label: f"version {VERSIONS[str(function.config.fn)]}" if function.config.built_in else f"sha256 {function.sha256}"
        for function in functions
    }


def function_sources(functions: Sequence[RewardFunction]) -> ConfigFiles:
    """Returns the files of the functions that a config names by a path, for another machine: each with the files beside it.

    Raises DataError where one is not what it was when the run began.
    """
    files: ConfigFiles = {}
    for function in functions:
        if function.config.built_in or not str(function.config.fn).rpartition(":")[0].endswith(".py"):
            continue
        path = Path(function.path)
        try:
            source = path.read_bytes()
            if sha256(source).hexdigest() != function.sha256:
                raise changed(function)
            beside = {str(Path(other).relative_to(path.parent)): Path(other).read_bytes() for other in function.beside}
        except OSError as error:
            raise changed(function) from error
        files[f"{function.key}.fn"] = {path.name: source} | beside
    return files


def changed(function: RewardFunction) -> DataError:
    """Returns the error for a function whose file is not what the run began with."""
    return DataError(
        f"{function.path}: changed while the run worked, and {function.label} is to give all rewards of a run as it was when that began. "
        "What was finished is safe: put the file back, then continue with the same command; or rate with the new one in another --output"
    )


def _about(places: Sequence[str]) -> list[dict[str, Any]]:
    """Loads the functions in a worker and returns its description of each."""
    worker = Worker()
    try:
        return worker.load(places)
    except WorkerHangs:
        cure = "load what is large when a function is first called"
        raise ConfigError(f"rewards: importing {', '.join(places)} took longer than {START_SECONDS:.0f} seconds; {cure}") from None
    except WorkerDied as died:
        cure = "import it in a Python of your own to see why"
        raise ConfigError(f"rewards: importing {', '.join(places)} ended the process that did: {died}; {cure}") from died
    finally:
        worker.close()


def _require_args(function: RewardFunction, where: str) -> None:
    args, own = function.config.args, [name for name in function.takes if name not in GIVEN]
    for name in args:
        if name in RESERVED:
            raise ConfigError(f"{where}.{name}: is given to every function; expected a name of its own, remove it")
        if name not in own and (function.config.built_in or not function.open):
            near = nearest(name, own)
            fix = f"did you mean {near}?" if near else f"it takes {', '.join(own) or 'none'}"
            raise ConfigError(f"{where}.{name}: {function.config.fn} has no such parameter; {fix}")
    if function.config.built_in:
        _require_values(function, args, where)


def _require_values(function: RewardFunction, args: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for args that a built-in function lacks or cannot use. A user's function checks its own."""
    for name in function.needs:
        if name not in GIVEN and name not in args:
            raise ConfigError(f"{where}.{name}: missing; expected {_WORDS[name]}, which {function.config.fn} needs")
    for name, value in args.items():
        if not _fits(name, value):
            raise ConfigError(f"{where}.{name}: found {shown(value)}; expected {_WORDS[name]}")


def _fits(name: str, value: object) -> bool:
    match name:
        case "ignore_case":
            return isinstance(value, bool)
        case "over":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "per":
            return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        case "pattern":
            return isinstance(value, str) and _compiles(value)
        case _:
            return isinstance(value, str) and bool(value)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
