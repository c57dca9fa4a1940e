"""Counts what the operations of a template cost, in characters and elements that they read and make, before they run.

One render has a budget. ``Unsure`` means that it is spent, or that a cost is unknown: another process then renders
(``render_process.py``). So the work of a render in this process is bounded as a whole: less than a second, and some 100 MB.
Knows the operations, and no templates.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import wraps
from typing import Any

BUDGET = 1 << 22  # units of one render; a usual prompt takes some ten times its length
WORDY = 12  # characters that one character can become as JSON or in Python's notation: two \u escapes
_SORTING = 32  # comparisons of each element
_PERCENT = re.compile(r"%[^a-zA-Z%]*")
_BRACES = re.compile(r"\{[^{}]*[{}]?")
_NUMBERS = re.compile(r"\d+")

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Cost = Callable[[Args, Kwargs], int]


def words(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


_LINEAR_METHODS = words(
    "split rsplit splitlines partition rpartition startswith endswith lower upper title capitalize casefold swapcase find rfind index"
    " rindex count isdigit isalpha isspace isupper islower isnumeric isdecimal isalnum istitle isascii removeprefix removesuffix"
)
_FREE_FILTERS = words("default d first last length count items attr")
_LAZY_FILTERS = words("map select reject selectattr rejectattr reverse")
_LINEAR_FILTERS = words("trim upper lower title capitalize string list int float abs wordcount truncate min max")
_SORTING_FILTERS = words("sort dictsort unique")
_COMPARING_TESTS = words("== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in lower upper")
_FREE_TESTS = words(
    "defined undefined none boolean false true integer float number string sequence iterable mapping callable sameas odd even"
    " divisibleby filter test"
)


class Unsure(Exception):
    """Raised where a render cannot be shown to stay small. The message is for programmers."""


class _Meter(threading.local):
    left = BUDGET
    written = 0  # characters of the text so far


_meter = _Meter()
_limited = threading.Event()  # set in a process whose memory and time are limited


def stop_counting() -> None:
    """Ends all counting, in a process whose memory and time are limited."""
    _limited.set()


def start_budget() -> None:
    """Gives the next render of this thread its budget."""
    _meter.left, _meter.written = BUDGET, 0


def pay(units: int) -> None:
    """Takes units from the budget. Raises Unsure when it is spent."""
    _meter.left -= units
    if _meter.left < 0:
        give_up("the budget is spent")


def paid_pieces(pieces: Iterable[str]) -> Iterator[str]:
    """Pays for each piece of the text."""
    for piece in pieces:
        size = len(piece)
        _meter.left -= size + 1
        _meter.written += size
        if _meter.left < 0:
            give_up("the budget is spent")
        yield piece


def written() -> int:
    """Returns the characters of the text so far."""
    return _meter.written


def give_up(reason: str) -> None:
    """Raises Unsure where costs are counted."""
    if not _limited.is_set():
        raise Unsure(reason)


def size_of(value: Any, indent: int = 0, level: int = 0) -> int:
    """Counts the characters and elements in a value; each element costs ``indent`` more a level. Raises Unsure beyond the budget."""
    total = 1 + indent * level
    if isinstance(value, str | bytes):
        return len(value) + total
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            total += size_of(item, indent, level + 1)
            if total > BUDGET:
                give_up("a value is large")
                break
    return total


def counted(items: Iterator[Any], units: int = 1) -> Iterator[Any]:
    """Pays ``units`` for each item."""
    for item in items:
        pay(units)
        yield item


def percent_size(text: str, values: Any) -> int:
    """Returns the cost of ``text % values``."""
    return len(text) * WORDY * size_of(values) + sum(int(n) for spec in _PERCENT.findall(text) for n in _NUMBERS.findall(spec))


# ------------------------------------------------------------------------------------------------------------ methods


def pay_text_method(text: str, name: str, args: Args, kwargs: Kwargs) -> None:
    """Pays for the method ``name`` of a string."""
    match name, args:
        case "strip" | "lstrip" | "rstrip", (str() as characters,):
            pay(len(text) * (1 + len(characters)))
        case "strip" | "lstrip" | "rstrip", ():
            pay(len(text))
        case "replace", (str() as old, str() as new, *_):
            pay(len(text) + text.count(old) * len(new))
        case "join", (list() | tuple() as parts,):
            pay(size_of(parts) + len(parts) * len(text))
        case "ljust" | "rjust" | "center" | "zfill", (int() as width, *_):
            pay(len(text) + width)
        case "format", _:
            pay(_braces_size(text, [*args, *kwargs.values()]))
        case _ if name in _LINEAR_METHODS:
            pay(len(text) + sum(map(size_of, (*args, *kwargs.values()))))
        case _:
            give_up(f"the cost of {name} is unknown")


def _braces_size(text: str, values: Any) -> int:
    fields = _BRACES.findall(text)
    if any(":" in field and field.endswith("{") for field in fields):
        give_up("a format's width is a value")
    return len(text) * WORDY * size_of(values) + sum(int(n) for field in fields for n in _NUMBERS.findall(field))


# -------------------------------------------------------------------------------------------------- filters and tests


def paid_filter(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter that pays before it runs."""
    if name in _FREE_FILTERS:
        return filter_
    if name in _LAZY_FILTERS:
        return _lazy(filter_)
    if name in _LINEAR_FILTERS:
        return _paid(filter_, _linear)
    if name in _SORTING_FILTERS:
        return _paid(filter_, lambda args, kwargs: _SORTING * _linear(args, kwargs))
    return _paid(filter_, _SPECIAL_FILTERS.get(name, _unknown))


def paid_test(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a test that pays before it runs."""
    return test if name in _FREE_TESTS else _paid(test, _linear if name in _COMPARING_TESTS else _unknown)


def _paid(function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    takes = 1 if hasattr(function, "jinja_pass_arg") else 0  # a context comes first

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        if _limited.is_set():
            return function(*args, **kwargs)
        own = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args[takes:])
        pay(cost(own, kwargs))
        return function(*args[:takes], *own, **kwargs)

    return paid


def _lazy(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def lazy(*args: Any, **kwargs: Any) -> Any:
        pay(sum(len(arg) for arg in args if isinstance(arg, list | tuple | str)))
        found = function(*args, **kwargs)
        return counted(found) if isinstance(found, Iterator) else found

    return lazy


def _unknown(_args: Args, _kwargs: Kwargs) -> int:
    give_up("the cost of a filter or test is unknown")
    return 0


def _linear(args: Args, kwargs: Kwargs) -> int:
    return WORDY * sum(map(size_of, (*args, *kwargs.values())))


def _join(args: Args, kwargs: Kwargs) -> int:
    return _linear(args, kwargs) + (len(args[0]) if isinstance(args[0], Sized) else 0) * sum(map(size_of, (*args[1:2], *kwargs.values())))


def _replace(args: Args, kwargs: Kwargs) -> int:
    match args:
        case (str() as text, str() as old, str() as new, *_):
            return len(text) + text.count(old) * len(new)
        case _:
            return _unknown(args, kwargs)


def _json(args: Args, kwargs: Kwargs) -> int:
    options = [*args[1:], *kwargs.values()]
    if kwargs.keys() - {"indent", "ensure_ascii", "sort_keys"} or any(not (x is None or (isinstance(x, int) and x <= 16)) for x in options):
        return _unknown(args, kwargs)
    return WORDY * size_of(args[0], 2 if any(options) else 0)


def _indent(args: Args, kwargs: Kwargs) -> int:
    match [*args[1:2], kwargs.get("width", 4)][0], args[0]:
        case int() as width, str() as text:
            return len(text) + (text.count("\n") + 1) * width
        case _:
            return _unknown(args, kwargs)


def _format(args: Args, kwargs: Kwargs) -> int:
    if not isinstance(args[0], str) or "*" in args[0]:
        return _unknown(args, kwargs)
    return percent_size(args[0], [*args[1:], *kwargs.values()])


def _round(args: Args, kwargs: Kwargs) -> int:
    precise = [x for x in (*args[1:2], kwargs.get("precision")) if isinstance(x, int) and x > 100]
    return _unknown(args, kwargs) if precise else 1


def _padded(args: Args, kwargs: Kwargs) -> int:
    return _linear(args, kwargs) + sum(x for x in (*args[1:], *kwargs.values()) if isinstance(x, int))


_SPECIAL_FILTERS: dict[str, Cost] = {
    "join": _join,
    "replace": _replace,
    "tojson": _json,
    "indent": _indent,
    "format": _format,
    "round": _round,
    "center": _padded,
    "batch": _padded,
    "slice": _padded,
}
