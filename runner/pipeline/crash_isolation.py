"""Runs suspect rows first. After a crash the supervisor names groups of rows that may have caused it.

Each group runs alone in the model and is on the disk before the next begins, so another death costs only its own group. Then all
other rows run together. Does not know how the groups were formed.
"""

from collections.abc import Callable, Iterator, Sequence

from ..core.outcomes import Outcome
from ..core.requests import BadRow, Row
from ..engine.interface import EngineInterface, one_window
from .io_threads import IOThreads


def suspect_rows(rows: Iterator[Row | BadRow], groups: Sequence[Sequence[int]]) -> list[list[Row | BadRow]]:
    """Returns the rows of each group of positions. ``rows`` come in order; they are read no further than needed.

    Positions that are not among ``rows`` (they are done) are left out.
    """
    wanted = {position for group in groups for position in group}
    last = max(wanted, default=-1)
    by_position: dict[int, Row | BadRow] = {}
    while len(by_position) < len(wanted) and (row := next(rows, None)) is not None and row.position <= last:
        if row.position in wanted:
            by_position[row.position] = row
    return [[by_position[position] for position in group if position in by_position] for group in groups]


def isolated_outcomes(engine: EngineInterface, threads: IOThreads, groups: int, stopped: Callable[[], bool]) -> Iterator[Outcome]:
    """Yields all outcomes. Each of the first ``groups`` windows is run alone and saved before the engine sees the next one."""
    for _ in range(groups):
        yield from engine.run(one_window(threads.next_window(True) or []), stopped)
        threads.flush()
    yield from engine.run(threads.next_window, stopped)
