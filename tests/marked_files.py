"""Which files ``pytest -m slow`` and ``pytest -m oracle`` import: those that name the mark, or stand beside a module that does.

All files and the libraries that they import take each process longer than many slow tests do.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

MARKS = ("slow", "oracle")


@cache
def names_mark(file: Path, mark: str) -> bool:
    """Returns whether ``file``, or a module beside it from which it may take marked parameters, names ``pytest.mark.<mark>``."""
    beside = (other for other in file.parent.glob("*.py") if not _holds_tests(other))
    return any(f"pytest.mark.{mark}" in other.read_text(encoding="utf-8") for other in (file, *beside))


def is_left_out(file: Path, expression: str) -> bool:
    """Returns whether ``file`` holds tests, but none that ``-m expression`` takes. False for each expression but a single mark."""
    return expression in MARKS and _holds_tests(file) and not names_mark(file, expression)


def _holds_tests(file: Path) -> bool:
    return file.name.startswith("test_") and file.suffix == ".py"


def require_named_marks(tests: Iterable[pytest.Item]) -> None:
    """Raises UsageError for a test whose mark its file does not name: ``pytest -m`` would leave it out without a word."""
    for test in tests:
        for mark in MARKS:
            if test.get_closest_marker(mark) is not None and not names_mark(test.path, mark):
                raise pytest.UsageError(
                    f"{test.nodeid} has the mark {mark}; write pytest.mark.{mark} in its own file, by which -m {mark} finds it"
                )
