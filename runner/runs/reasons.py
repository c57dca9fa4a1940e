"""Why rows were quarantined, the most frequent reasons first: what the end of a run says beside their number.

A reason is a stage and a class of error, as `mlx-bulk status` tells them apart; its first row's message stands for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...configs.visible import visible
from ..core.errors import DROP
from ..store.results import read_errors

SHOWN = 3
_MESSAGE = 300  # characters shown
_COLUMNS = ["row", "stage", "error", "message"]
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
    seen = 0
    for batch in read_errors(run, _COLUMNS):
        if seen >= _READ:
            return (*_lines(kinds.values()), f"these are the first {seen:,} that failed: errors/ has them all")
        seen += batch.num_rows
        for row, stage, error, message in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
            if stage == DROP:  # on purpose
                continue
            if (reason := kinds.get((stage, error))) is not None:
                reason.count += 1
            else:
                kinds[stage, error] = _Reason(1, row, stage, message)
    return _lines(kinds.values())


def _lines(kinds: Iterable[_Reason]) -> tuple[str, ...]:
    often = sorted(kinds, key=lambda reason: (-reason.count, reason.row))
    others = sum(reason.count for reason in often[SHOWN:])
    more = [f"{others:,} failed for other reasons: errors/ has them all"] if others else []
    return (*map(_line, often[:SHOWN]), *more)


def _line(reason: _Reason) -> str:
    message = visible(" ".join(reason.message.split()))
    message = message if len(message) <= _MESSAGE else f"{message[: _MESSAGE - 1]}…"
    return f"{reason.count:,} failed at {reason.stage}, the first in row {reason.row}: {message}"
