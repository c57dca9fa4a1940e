"""Groups that wait for their ratings. All samples of a row are rated together, then recorded together or not at all.

Belongs to the recording thread. Does not know rewards or files: the job's ``Grouping`` says what a rating is and what it leads to.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from ..core.outcomes import Failure, Generated
from ..core.requests import Request, Row
from .job import Grouping, Ratings

RATED_AT_ONCE = 64  # groups: the model waits while more than these are not rated yet


@dataclass(slots=True, frozen=True)
class RatedGroup:
    """A group after its rating. outcome: its records by their numbers in the row, or one failure of the whole row."""

    position: int
    outcome: dict[int, dict[str, Any]] | Failure


@dataclass(slots=True, frozen=True)
class _Group:
    """All outcomes of a row, in the order of their samples, and the ratings to come."""

    row: Row
    request: Request
    outcomes: list[Generated]
    ratings: Future[Ratings]


class PendingGroups:
    """The groups that are not rated yet.

    on_rated: called, in any thread, when ratings have arrived. stopped: returns True when the run is to end early; then nobody
    waits for ratings, and the next start does these groups again. newest_version: returns the version of the trainer's newest policy.
    """

    def __init__(self, grouping: Grouping, on_rated: Callable[[], None], stopped: Callable[[], bool], newest_version: Callable[[], int]):
        self._grouping, self._on_rated, self._stopped, self._newest_version = grouping, on_rated, stopped, newest_version
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
        ratings.add_done_callback(lambda _: self._on_rated())

    def rated(self, most: int) -> Iterator[RatedGroup]:
        """Yields the groups whose ratings have arrived. Waits while more than ``most`` groups are without ratings."""
        while True:
            waiting, self._waiting = self._waiting, []
            for group in waiting:
                if group.ratings.done():
                    yield self._rated(group)
                else:
                    self._waiting.append(group)
            if len(self._waiting) <= most or self._stopped():
                return
            wait([group.ratings for group in self._waiting], timeout=0.2, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """Ends the rating; groups without ratings are dropped."""
        if self._judge is not None:
            self._judge.close()

    def _rated(self, group: _Group) -> RatedGroup:
        position = group.row.position
        records = self._grouping.group(group.row, group.request, group.outcomes, group.ratings.result(), self._newest_version())
        if isinstance(records, Failure):
            return RatedGroup(position, records)
        return RatedGroup(position, dict(enumerate(records)))
