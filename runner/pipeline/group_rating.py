"""Rows whose samples are recorded together: rated beside the model's work, then handed on whole, or not at all.

Belongs to the thread that records. Knows neither rewards nor files: what a rating is, and what becomes of it, is the job's.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from ..core.requests import Failure, Generated, Request, Row
from .job import Grouping, Ratings

RATED_AT_ONCE = 64  # groups: the model waits when so many are not rated yet


@dataclass(slots=True, frozen=True)
class Recorded:
    """What became of a group: its records by sample, or one failure of its row as a whole."""

    position: int
    outcome: dict[int, dict[str, Any]] | Failure


@dataclass(slots=True, frozen=True)
class _Group:
    """All outcomes of a row, by their sample, and the ratings to come."""

    row: Row
    request: Request
    outcomes: list[Generated]
    ratings: Future[Ratings]


class PendingGroups:
    """The groups that wait for their ratings. ``told`` is called, in any thread, when there is one more; ``stopped`` whether the
    run is to end early: then nobody waits, and groups that are not rated are done again at the next start. ``newest``: the version of
    the trainer's newest policy.
    """

    def __init__(self, grouping: Grouping, told: Callable[[], None], stopped: Callable[[], bool], newest: Callable[[], int]):
        self._grouping, self._told, self._stopped, self._newest = grouping, told, stopped, newest
        self._judge = grouping.judge()
        self._waiting: list[_Group] = []

    def add(self, row: Row, request: Request, outcomes: Sequence[Generated]) -> None:
        """Has a complete group rated."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.index)
        if self._judge is None:
            ratings: Future[Ratings] = Future()
            ratings.set_result(Ratings({}, {}))
        else:
            ratings = self._judge.rate(row, request, ordered)
        self._waiting.append(_Group(row, request, ordered, ratings))
        ratings.add_done_callback(lambda _: self._told())

    def recorded(self, most: int) -> Iterator[Recorded]:
        """Those whose ratings are there. Waits for ratings while more than ``most`` groups are without."""
        while True:
            waiting, self._waiting = self._waiting, []
            for group in waiting:
                if group.ratings.done():
                    yield self._recorded(group)
                else:
                    self._waiting.append(group)
            if len(self._waiting) <= most or self._stopped():
                return
            wait([group.ratings for group in self._waiting], timeout=0.2, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """Ends the rating; what is not rated is left."""
        if self._judge is not None:
            self._judge.close()

    def _recorded(self, group: _Group) -> Recorded:
        records = self._grouping.group(group.row, group.request, group.outcomes, group.ratings.result(), self._newest())
        if isinstance(records, Failure):
            return Recorded(group.row.position, records)
        return Recorded(group.row.position, {outcome.index: record for outcome, record in zip(group.outcomes, records, strict=True)})
