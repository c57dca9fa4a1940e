"""Runs reward functions in a process of its own: reads calls from one pipe and writes answers to another.

``process_guard.py`` runs it as a script, by its path. It imports the standard library alone, so it starts in milliseconds. It knows no
config and no group, only functions, keyword arguments and lists of numbers. The calling side is ``worker_process.py``.

    in:  length (8 bytes), pickle of [number, request]: the functions' names; then (function, its args, pickle of the group)
    out: a line of JSON, [number, answer]: about each, or why it is refused; {"rewards": […], "errors": […]} or {"failed": "kind: text"}

An answer has its request's number. A child that a function has forked, and that comes back here, ends without an answer.
"""

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import pickle
import sys
import traceback
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

LARGEST = 3.4028234663852886e38  # float32's: rewards are stored as float32
MESSAGE_CHARACTERS = 450  # of an error's message
# Arguments that TRL's trainer gives a function besides the columns, with their stand-ins here.
OFFERED: dict[str, Any] = {"log_extra": lambda *_: None, "log_metric": lambda *_: None, "trainer_state": None}

_WORKER = os.getpid()
_SHA256: dict[str, str] = {}  # of the files that were run, by path

Inputs = dict[str, Any]
Answer = dict[str, Any]


class FunctionRefused(Exception):
    """A function cannot be loaded; the message says why."""


def serve(tasks: int, answers: int) -> None:
    """Answers requests from the file descriptor ``tasks`` until it is closed."""
    with os.fdopen(tasks, "rb") as file, os.fdopen(answers, "w", encoding="utf-8") as out, asyncio.Runner() as runner:
        sys.path.insert(0, str(Path.cwd()))
        functions: list[Callable[..., Any] | None] = []
        for number, request in _requests(file):
            if isinstance(request, list):
                loaded = [_loaded(fn) for fn in request]
                answer, functions = [about for about, _ in loaded], [function for _, function in loaded]
            else:
                which, args, group = request
                function = functions[which]
                assert function is not None, "a function that is refused is not called"
                answer = _call(function, pickle.loads(group) | args, runner)
            _end_fork()
            out.write(json.dumps([number, answer]) + "\n")
            out.flush()


def _requests(file: BinaryIO) -> Iterator[Any]:
    while len(head := file.read(8)) == 8:
        yield pickle.loads(file.read(int.from_bytes(head, "big")))


def _end_fork(error: BaseException | None = None) -> None:
    """Ends this process where a function has forked it: the answer of a copy of the worker would be taken for another's.

    Its exit code after ``error`` is Python's.
    """
    if os.getpid() == _WORKER:
        return
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 255)


# --------------------------------------------------------------------------------------------------------- functions


def _loaded(fn: str) -> tuple[Answer, Callable[..., Any] | None]:
    """Loads a function. Describes it by path and sha256 of its file, the parameters that it takes and those that it needs."""
    place, _, name = fn.rpartition(":")
    try:
        module = _module(place)
        function = getattr(module, name, None)
        if module.__file__ is None:
            raise FunctionRefused(f"{place} has no file of its own; name the module that defines {name}")
        file = Path(module.__file__)
        if not callable(function):
            defined = [other for other, value in vars(module).items() if inspect.isfunction(value) and not other.startswith("_")]
            raise FunctionRefused(f"{file} defines no function {name!r}; it has {', '.join(defined) or 'none'}")
        signature = _signature(function)
        if first := signature.pop("by_position"):
            raise FunctionRefused(f"{file}: {name} takes {first[0]!r} by position only; expected parameters that are given by name")
        sha256 = _SHA256.get(str(file)) or hashlib.sha256(file.read_bytes()).hexdigest()
        about = {"path": str(file), "sha256": sha256, "beside": _beside(file), **signature}
    except FunctionRefused as refused:
        return {"refused": str(refused)}, None
    return about, function


def _beside(file: Path) -> list[str]:
    """Lists the files in the folder of ``file``, and below, that have been imported, without those of installed packages."""
    installed = [Path(sys.prefix).resolve(), Path(os.__file__).resolve().parent]
    files = {Path(name) for module in list(sys.modules.values()) if (name := getattr(module, "__file__", None)) and name.endswith(".py")}
    own = {other for other in files if other != file and other.is_relative_to(file.parent)}
    return sorted(
        str(other) for other in own if "site-packages" not in other.parts and not any(other.is_relative_to(folder) for folder in installed)
    )


def _module(place: str) -> ModuleType:
    """Imports a file, or a name from the working folder or the installed packages."""
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except BaseException as error:
            _end_fork(error)
            raise FunctionRefused(_where(error)) from error
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise FunctionRefused(f"{path}: no such file")
    name = f"reward_file_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # files beside it can be imported, as in a script
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    source = path.read_bytes()
    _SHA256[str(path)] = hashlib.sha256(source).hexdigest()
    try:
        # Not by the loader: it may find an older file of the same time and size in Python's cache.
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        _end_fork(error)
        raise FunctionRefused(_where(error)) from error
    return module


def _where(error: BaseException) -> str:
    """Describes an error in loading a module, with the file and line that raised it."""
    text = _said(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {text}" if frames else text


def _signature(function: Callable[..., Any]) -> Answer:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {"takes": [], "needs": [], "open": True, "by_position": []}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        "takes": [p.name for p in named],
        "needs": [p.name for p in named if p.default is p.empty and p.name not in OFFERED],
        "open": any(p.kind is p.VAR_KEYWORD for p in parameters),
        "by_position": [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY],
    }


# ------------------------------------------------------------------------------------------------------------- calls


def _call(function: Callable[..., Any], inputs: Inputs, runner: "asyncio.Runner") -> Answer:
    """Returns the rewards of a group, or why there are none. ``inputs``: all arguments that the function may take, by name."""
    count = len(inputs["completions"])
    try:
        result = function(**_accepted(function, inputs))
        if inspect.isawaitable(result):
            result = runner.run(_awaited(result))
        if isinstance(result, AsyncIterable):
            result = runner.run(_listed(result))
        return _checked(result, count)
    except BaseException as error:  # sys.exit in a function must not end this process
        _end_fork(error)
        return {"failed": f"exception: {_said(error)}{_line(error, function)}"}


def _said(error: BaseException) -> str:
    """Returns an error's class and message; of a long message the first lines, or the beginning of the first."""
    message = _text(str, error)
    if len(message) > MESSAGE_CHARACTERS:
        message = (message[:MESSAGE_CHARACTERS].rpartition("\n")[0] or message[:MESSAGE_CHARACTERS]) + " …"
    return f"{type(error).__name__}: {message}"


def _text(write: Callable[[Any], str], value: Any) -> str:
    """Returns ``str`` or ``repr`` of a value of a user's class, where these may raise."""
    try:
        return write(value)
    except BaseException as error:
        _end_fork(error)
        return f"(its {write.__name__} raises {type(error).__name__})"


def _line(error: BaseException, function: Callable[..., Any]) -> str:
    """Returns in brackets the last line of the function's own file in the error's traceback."""
    own = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f" ({Path(own).name}, line {lines[-1]})" if own and lines else ""


async def _awaited(result: Any) -> Any:
    return await result


async def _listed(values: AsyncIterable[Any]) -> list[Any]:
    return [value async for value in values]


def _accepted(function: Callable[..., Any], inputs: Inputs) -> Inputs:
    signature = _signature(function)
    offered = {name: value for name, value in OFFERED.items() if name in signature["takes"]}
    return offered | {name: value for name, value in inputs.items() if signature["open"] or name in signature["takes"]}


def _checked(result: Any, count: int) -> Answer:
    """Turns a function's result into a number or None for each sample, with the reason for each value that is refused."""
    if hasattr(result, "tolist"):  # an array or a tensor
        result = result.tolist()
    if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping | Set):
        return {"failed": f"type: returned {_kind(result)}; expected a list with a number or None for each completion"}
    if not isinstance(result, Sequence):  # a generator may have no end
        result = list(islice(result, count + 1))
    if len(result) != count:
        found = f"more than {count}" if len(result) == count + 1 else len(result)
        return {"failed": f"length: returned {found} rewards for {count} completions"}
    pairs = [_number(value) for value in result]
    return {"rewards": [value for value, _ in pairs], "errors": [error for _, error in pairs]}


def _number(value: Any) -> tuple[float | None, str | None]:
    if value is None:
        return None, None
    if hasattr(value, "item"):  # a NumPy number or a tensor with one
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):
            return None, f"type: {_kind(value)} among the rewards; expected a number or None"
    if not isinstance(value, Real | Decimal):
        return None, f"type: {_kind(value)} among the rewards; expected a number or None"
    try:
        number = float(value)
    except OverflowError:  # an int or a Fraction
        number = math.inf
    except ValueError:  # a signalling NaN
        number = math.nan
    if number != number:
        return None, "nan: the reward is not a number"
    if not -LARGEST <= number <= LARGEST:
        return None, "infinite: the reward is infinite, or beyond what float32 holds"
    return number, None


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {_text(repr, value)}"[:80]


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:3]))
