"""Rows one of which may have ended the last process are run first, a group at a time, with no other row in the model; then all others.

A group is on the disk before the next begins, so a death costs no group but its own. Does not know who formed the groups.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..core.requests import BadRow, Outcome, Row
from ..engine.interface import Runs
from .io_threads import IOThreads


def picked(rows: Iterator[Row | BadRow], groups: Sequence[Sequence[int]]) -> list[list[Row | BadRow]]:
    """Of each group of positions the rows that are among ``rows``, which come in order; reads no further than it has to."""
    last = max((position for group in groups for position in group), default=-1)
    wanted = {position for group in groups for position in group}
    found: dict[int, Row | BadRow] = {}
    while len(found) < len(wanted) and (row := next(rows, None)) is not None and row.position <= last:
        if row.position in wanted:
            found[row.position] = row
    return [[found[position] for position in group if position in found] for group in groups]


def outcomes(engine: Runs, threads: IOThreads, groups: int, stopped: Callable[[], bool]) -> Iterator[Outcome]:
    """All outcomes; those of each of the threads' first ``groups`` windows before the engine sees the next window."""
    for _ in range(groups):
        yield from engine.run(_once(threads.next_window(True)), stopped)
        threads.flush()
    yield from engine.run(threads.next_window, stopped)


def _once(window: list[Any] | None) -> Callable[[bool], list[Any] | None]:
    """Gives ``window``, and then says that there is no more."""
    windows = iter([window or None])
    return lambda wait: next(windows, None)
