"""Why rows were quarantined, the most frequent reasons first: what the end of a run says beside their number.

A reason is a stage and how its message begins, less what differs from row to row: numbers, and what stands in quotes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..configs.visible import visible
from .parts import read_errors

SHOWN = 3
_ALIKE = 80  # characters at a message's start that tell reasons apart
_MESSAGE = 300  # characters shown
_DIFFERS = re.compile(r"(?<!\w)(?:'[^']*'?|\"[^\"]*\"?)|[0-9]+")  # from row to row; a quote may be cut off, an apostrophe opens none
_KINDS = 10_000  # told apart: where each message is another one, memory does not grow with them
_READ = 200_000  # failures; a second or two


@dataclass(slots=True)
class _Reason:
    """Failures of one kind: how many, and the first one."""

    count: int
    row: int
    stage: str
    message: str


def reasons(run: Path) -> tuple[str, ...]:
    """The up to three most frequent reasons in the run directory ``run``, a line each, and how many failed for others.

    Of what is committed, and of the first 200,000 failures where there are more, which is then said. The first of equals comes
    first. Raises RunDirError where a part is missing.
    """
    kinds: dict[tuple[str, str], _Reason] = {}
    others = seen = 0
    for batch in read_errors(run, ["row", "stage", "message"]):
        if seen >= _READ:
            return (*_lines(kinds.values(), others), f"these are the first {seen:,} that failed: errors/ has them all")
        seen += batch.num_rows
        for row, stage, message in zip(*(batch.column(name).to_pylist() for name in ("row", "stage", "message")), strict=True):
            kind = stage, _DIFFERS.sub("#", message[: 4 * _ALIKE])[:_ALIKE]
            if (reason := kinds.get(kind)) is not None:
                reason.count += 1
            elif len(kinds) < _KINDS:
                kinds[kind] = _Reason(1, row, stage, message)
            else:
                others += 1
    return _lines(kinds.values(), others)


def _lines(kinds: Iterable[_Reason], others: int) -> tuple[str, ...]:
    often = sorted(kinds, key=lambda reason: (-reason.count, reason.row))
    others += sum(reason.count for reason in often[SHOWN:])
    more = [f"{others:,} failed for other reasons: errors/ has them all"] if others else []
    return (*map(_line, often[:SHOWN]), *more)


def _line(reason: _Reason) -> str:
    message = visible(" ".join(reason.message.split()))
    message = message if len(message) <= _MESSAGE else f"{message[: _MESSAGE - 1]}…"
    return f"{reason.count:,} failed at {reason.stage}, the first in row {reason.row}: {message}"
