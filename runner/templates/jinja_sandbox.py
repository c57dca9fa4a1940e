"""A Jinja sandbox that bounds the size of a template's texts, lists and numbers, so that one row can't take all memory.

Jinja's own sandbox bounds ``range`` and keeps templates from files and modules, but allows ``"x" * n`` and ``10 ** n``. A refused
template costs only its row. The heartbeat handles a template that only computes for long. Knows no rows and no prompts.
"""

import re
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from io import StringIO
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHARACTERS = 1 << 27  # of one text, longer than any document; also elements of one list
NUMBER_BITS = 1 << 16
_PADDING_FILTERS = ("batch", "center", "indent", "slice")
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{7})")  # a %-format whose width is long, or comes from an argument


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that raises SecurityError for products, powers and padding that are too large."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bound_filters()

    def bound_filters(self) -> None:
        """Makes the filters that pad refuse large widths."""
        self.filters.update({name: _bounded(self.filters[name]) for name in _PADDING_FILTERS})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Returns the operator's value. Raises SecurityError if it would be too large."""
        self.check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def check_binop(self, operator: str, left: Any, right: Any) -> None:
        """Raises SecurityError if the operator's value would be too large."""
        match operator, left, right:
            case "*", int(), int():
                _require_number(left.bit_length() + right.bit_length())
            case "*", int(), Sized():
                _require(left * len(right))
            case "*", Sized(), int():
                _require(len(left) * right)
            case "**", int(), int():
                _require_number(left.bit_length() * right)
            case "%", str(), _ if _WIDE.search(left):
                raise SecurityError(f"the format {left[:80]!r} has a width that is too large, or is not known")
            case _:
                pass

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja names them
        """Returns the value of a call in a template. Raises SecurityError for a string method with a large width."""
        __self.check_call(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def check_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises SecurityError for a string method with a large width."""
        if isinstance(getattr(function, "__self__", None), str):
            _require_widths(args, kwargs)


def render(template: Template, values: Mapping[str, Any]) -> str:
    """Returns the template's text. Raises SecurityError once it is longer than CHARACTERS, and ValueError as ``require_characters``.

    Raises any error of the template too.
    """
    text = StringIO()
    for piece in template.generate(values):
        text.write(piece)
        if text.tell() > CHARACTERS:
            _require(text.tell())
    whole = text.getvalue()
    require_characters(whole)
    return whole


def require_characters(text: str) -> None:
    """Raises ValueError for half of a surrogate pair: Python and JSON write it, and no tokenizer reads it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text holds half of a surrogate pair (\\ud800-\\udfff), which is no character") from None


def _bounded(filter_: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _require_widths(args, kwargs)
        return filter_(*args, **kwargs)

    return bounded


def _require_widths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            _require(value)


def _require(size: int) -> None:
    if size > CHARACTERS:
        raise SecurityError(f"its text or list grows beyond {CHARACTERS:,} characters or elements")


def _require_number(bits: int) -> None:
    if bits > NUMBER_BITS:
        raise SecurityError(f"a number grows beyond {NUMBER_BITS:,} bits")
