"""Outcomes to records: what a row needs is held until its last outcome is recorded, a group's outcomes until all are there.

Belongs to the thread that records, but for ``expect``. Knows neither the engine nor files: records go to the writer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...configs.visible import visible
from ..core.errors import DROP, DataError
from ..core.requests import AnyRequest, Failure, Generated, Outcome, Request, Row
from ..core.shard_layout import Layout
from ..data.type_inference import json_text
from ..store.recovery import Recovered
from .group_rating import RATED_AT_ONCE, PendingGroups
from .job import Job, placed
from .sinks import Sink


@dataclass(slots=True)
class _Waiting:
    """A row whose outcomes are not all there. outcomes, failure: those of a group, and the first of its failures."""

    row: Row
    request: AnyRequest
    left: int
    outcomes: list[Generated] = field(default_factory=list[Generated])
    failure: Failure | None = None


class Recorder:
    """Records outcomes of rows that it was told to ``expect``.

    ``told`` is called, in any thread, when a group is rated: ``record_rated`` is then to be called. ``newest``: the version of the
    trainer's newest policy. ``fail_fast``: the first row that fails raises DataError (``on_error: fail``).
    """

    def __init__(
        self,
        job: Job,
        writer: Sink,
        recovered: Recovered,
        layout: Layout,
        told: Callable[[], None],
        stopped: Callable[[], bool],
        *,
        newest: Callable[[], int],
        fail_fast: bool,
    ):
        self._job, self._writer, self._recovered, self._layout = job, writer, recovered, layout
        self._fail_fast = fail_fast
        self._waiting: dict[int, _Waiting] = {}
        self._groups = None if job.grouping is None else PendingGroups(job.grouping, told, stopped, newest)

    def expect(self, row: Row, request: AnyRequest) -> None:
        """Says what an outcome of the row's will have been asked with; before it comes, in any thread."""
        self._waiting[row.position] = _Waiting(row, request, len(request.samples))

    def record(self, outcome: Outcome) -> None:
        """Records an outcome, or has its group rated if it was the last of it; a failure goes to the errors."""
        waiting = self._settled(outcome)
        if waiting is None:
            assert isinstance(outcome, Failure), "an outcome of a row that nobody expects"
            self._fail(outcome)
        elif self._groups is not None:
            self._collect(self._groups, waiting, outcome)
        elif isinstance(outcome, Failure):
            if outcome.sample is None or not self._recorded(outcome.row, outcome.sample):
                self._fail(_of_row(outcome, waiting.row))
        elif not self._recorded(outcome.row, outcome.index):
            self._writer.add(outcome.row, outcome.index, self._job.record(waiting.row, waiting.request, outcome))

    def record_rated(self, most: int) -> None:
        """Records the groups whose ratings are there; waits for some while more than ``most`` are without."""
        for group in self._groups.recorded(most) if self._groups is not None else ():
            if isinstance(group.outcome, Failure):
                self._fail(group.outcome)
            else:
                self._writer.add_group(group.position, group.outcome)

    def close(self) -> None:
        """Ends the rating of groups."""
        if self._groups is not None:
            self._groups.close()

    def _collect(self, groups: PendingGroups, waiting: _Waiting, outcome: Outcome) -> None:
        """Takes an outcome of a group; the group is rated when it is the last one, or fails as a whole with one that failed."""
        if isinstance(outcome, Failure):
            waiting.failure = waiting.failure or outcome
        else:
            assert isinstance(outcome, Generated)
            waiting.outcomes.append(outcome)
        if waiting.left or self._recorded(outcome.row, 0):
            return
        if (failure := waiting.failure) is not None:
            message = f"sample {failure.sample}: {failure.message}; its group is left out as a whole"
            self._fail(_of_row(replace(failure, sample=None, message=message), waiting.row))
        else:
            assert isinstance(waiting.request, Request)
            groups.add(waiting.row, waiting.request, waiting.outcomes)
            self.record_rated(RATED_AT_ONCE)

    def _fail(self, failure: Failure) -> None:
        if self._fail_fast and failure.stage != DROP:
            place = self._layout.row_of(failure.row)
            where = f"row {place}" + (f" (key {visible(failure.key)})" if failure.key not in (None, str(place)) else "")
            raise DataError(f"on_error: fail, and {where} failed at {failure.stage}: {visible(failure.message)}")
        self._writer.fail(failure)

    def _settled(self, outcome: Outcome) -> _Waiting | None:
        """What waits for the outcome; None for a row that failed whole before it was run."""
        if (isinstance(outcome, Failure) and outcome.sample is None) or outcome.row not in self._waiting:
            return None
        waiting = self._waiting[outcome.row]
        waiting.left -= 1
        if not waiting.left:
            del self._waiting[outcome.row]
        return waiting

    def _recorded(self, position: int, sample: int) -> bool:
        """Whether an earlier session has recorded this sample (it was run again for the sake of its batch)."""
        shard = self._recovered.done.get(self._layout.shard_of(position))
        return shard is not None and shard.has(self._layout.row_of(position), sample)


def _of_row(failure: Failure, row: Row) -> Failure:
    """The failure with what the engine does not know: the row's key, where it stands, and its columns."""
    return replace(failure, key=row.key, message=placed(failure.message, row), input=json_text(row.columns))
