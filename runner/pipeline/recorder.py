"""Turns outcomes into records. It holds a row until its last outcome is recorded, and a group's outcomes until all have come.

All methods belong to the recording thread, except ``expect``. Does not know the engine or files: records go to a ``Sink``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...configs.visible import visible
from ..core.errors import DROP, UNFIT, DataError, RowError
from ..core.outcomes import Failure, Generated, Outcome
from ..core.requests import AnyRequest, Request, Row
from .group_rating import RATED_AT_ONCE, PendingGroups
from .job import Job, failed_input, placed, row_failure
from .row_requests import RecordedRows


class Sink(Protocol):
    """Takes records and failures, from the recording thread alone. ``Writer`` keeps them in the run directory."""

    def admit(self, position: int, samples: int) -> None:
        """Notes that the row at ``position`` will have ``samples`` records or failures."""
        ...

    def add(self, position: int, sample: int, record: dict[str, Any]) -> None:
        """Takes a finished record."""
        ...

    def add_group(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        """Takes all records of a row, by their sample."""
        ...

    def fail(self, failure: Failure) -> None:
        """Takes the failure of a row, or of one sample."""
        ...

    def flush(self, saved: Callable[[], None]) -> None:
        """Calls ``saved`` when everything taken before is safe."""
        ...

    @property
    def running(self) -> bool:
        """False once nothing is taken any more."""
        ...

    @property
    def broken(self) -> bool:
        """True when that is because of a failure."""
        ...


@dataclass(slots=True)
class _ExpectedRequest:
    """A request that the model has. left: outcomes to come. outcomes, failure: those of a group, and the first that failed."""

    row: Row
    request: AnyRequest
    left: int
    outcomes: list[Generated] = field(default_factory=list[Generated])
    failure: Failure | None = None


class Recorder:
    """Records the outcomes of the rows that it was told to ``expect``.

    groups: rates a row's samples together; None where each outcome is a record by itself. fail_fast: the first row that fails
    raises DataError (``on_error: fail``).
    """

    def __init__(self, job: Job, sink: Sink, recorded: RecordedRows, groups: PendingGroups | None, fail_fast: bool):
        self._job, self._sink, self._recorded, self._groups, self._fail_fast = job, sink, recorded, groups, fail_fast
        self._expected: dict[tuple[int, int], _ExpectedRequest] = {}  # by row and sample

    def expect(self, row: Row, request: AnyRequest) -> None:
        """Notes the request that the row's outcomes will answer. Call it before the model has the request, in any thread."""
        expected = _ExpectedRequest(row, request, len(request.samples))
        self._expected.update(((row.position, sample), expected) for sample in request.samples)

    def record(self, outcome: Outcome) -> None:
        """Records an outcome, or has its group rated after the group's last one. A failure goes to the errors."""
        expected = self._take(outcome)
        if expected is None:
            assert isinstance(outcome, Failure), "an outcome of a row that nobody expects"
            self._fail(outcome)
        elif self._groups is not None:
            self._add_to_group(self._groups, expected, outcome)
        elif isinstance(outcome, Failure):
            if outcome.sample is None or not self._recorded.has(outcome.row, outcome.sample):
                self._fail(_with_row(outcome, expected.row))
        elif not self._recorded.has(outcome.row, outcome.index):
            try:
                self._sink.add(outcome.row, outcome.index, self._job.record(expected.row, expected.request, outcome))
            except RowError as error:
                failure = row_failure(expected.row, error.stage, error.name, str(error))
                self._fail(replace(failure, sample=outcome.index))

    def record_rated(self, most: int) -> None:
        """Records the groups that are rated; waits while more than ``most`` groups are not."""
        for group in self._groups.rated(most) if self._groups is not None else ():
            if isinstance(group.outcome, Failure):
                self._fail(group.outcome)
            else:
                self._sink.add_group(group.position, group.outcome)

    def close(self) -> None:
        """Ends the rating of groups."""
        if self._groups is not None:
            self._groups.close()

    def _add_to_group(self, groups: PendingGroups, expected: _ExpectedRequest, outcome: Outcome) -> None:
        """Adds an outcome to its group. After the last one the group is rated; it fails as a whole where a sample failed."""
        if isinstance(outcome, Failure):
            expected.failure = expected.failure or outcome
        else:
            assert isinstance(outcome, Generated)
            expected.outcomes.append(outcome)
        if expected.left or self._recorded.has(outcome.row, 0):
            return
        if (failure := expected.failure) is not None:
            message = f"sample {failure.sample}: {failure.message}; its group is left out as a whole"
            self._fail(_with_row(replace(failure, sample=None, message=message), expected.row))
        else:
            assert isinstance(expected.request, Request)
            groups.add(expected.row, expected.request, expected.outcomes)
            self.record_rated(RATED_AT_ONCE)

    def _fail(self, failure: Failure) -> None:
        if self._fail_fast and failure.stage not in (DROP, UNFIT):
            raise first_failure(failure, self._recorded.layout.row_of(failure.row))
        self._sink.fail(failure)

    def _take(self, outcome: Outcome) -> _ExpectedRequest | None:
        """Returns the request that expects the outcome, which is forgotten; None for a row that failed before it was run."""
        sample = outcome.sample if isinstance(outcome, Failure) else outcome.index
        expected = None if sample is None else self._expected.pop((outcome.row, sample), None)
        if expected is not None:
            expected.left -= 1
        return expected


def first_failure(failure: Failure, row: int) -> DataError:
    """Returns what a run with ``on_error: fail`` ends with. row: its number in the input."""
    where = f"row {row}" + (f" (key {visible(failure.key)})" if failure.key not in (None, str(row)) else "")
    return DataError(f"on_error: fail, and {where} failed at {failure.stage}: {visible(failure.message)}")


def _with_row(failure: Failure, row: Row) -> Failure:
    """Adds what the engine does not know: the row's key, its place in the input, and its columns."""
    return replace(failure, key=row.key, message=placed(failure.message, row), input=failed_input(row, failure.stage))
