"""Turns one row into requests, and decides what earlier sessions have left to do of it.

Does not touch the model, files or threads: the caller passes the messages and the requests on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..core.errors import RowError
from ..core.outcomes import Failure
from ..core.requests import AnyRequest, BadRow, Request, Row
from ..core.shard_layout import Layout
from ..store.recovery import Recovered
from ..store.shard_ledger import Ledger
from .job import Job, bad_row_failure, row_failure

NOTHING_RECORDED = Recovered(frozenset(), {}, {}, {}, {}, 0, 0, 0)


@dataclass(slots=True, frozen=True)
class Admit:
    """Message: the row at ``position`` has ``samples`` records or failures, those of earlier sessions included."""

    position: int
    samples: int


@dataclass(slots=True, frozen=True)
class PreparedRow:
    """A row made ready: messages for the recording thread, then requests for the model."""

    messages: tuple[Admit | Failure, ...] = ()
    requests: tuple[AnyRequest, ...] = ()


@dataclass(slots=True, frozen=True)
class RecordedRows:
    """The records of earlier sessions in open shards, by the rows' positions."""

    recovered: Recovered
    layout: Layout

    def failed(self, position: int) -> bool:
        """Returns True when the row failed as a whole."""
        ledger = self._ledger(position)
        return ledger is not None and ledger.has_failed(self.layout.row_of(position))

    def resolved(self, position: int) -> bool:
        """Returns True when nothing is left to do of the row."""
        ledger = self._ledger(position)
        return ledger is not None and ledger.is_resolved(self.layout.row_of(position))

    def has(self, position: int, sample: int) -> bool:
        """Returns True when this sample needs no more work."""
        ledger = self._ledger(position)
        return ledger is not None and ledger.has(self.layout.row_of(position), sample)

    def samples(self, position: int) -> set[int]:
        """Returns the samples of the row that have a record or a failure of their own."""
        ledger = self._ledger(position)
        return set() if ledger is None else ledger.samples_of(self.layout.row_of(position))

    def _ledger(self, position: int) -> Ledger | None:
        return self.recovered.done.get(self.layout.shard_of(position))


@dataclass(slots=True, frozen=True)
class _Refused:
    """A row that cannot be run, and the samples that it asks for; None where nobody can know them."""

    failure: Failure
    samples: set[int] | None


class RowRequests:
    """Makes the requests of rows, without the samples that are recorded already.

    check: says why a request cannot be run, or None. fatal: says of a row's position why the row is not run any more.
    whole_shards: rows of an open shard are all run, recorded or not (deterministic mode repeats a batch as it was).
    """

    def __init__(
        self, job: Job, recorded: RecordedRows, check: Callable[[AnyRequest], str | None], fatal: Mapping[int, str], whole_shards: bool
    ):
        self._job, self._recorded, self._check, self._fatal, self._whole_shards = job, recorded, check, fatal, whole_shards

    def prepare(self, row: Row | BadRow) -> PreparedRow:
        """Returns the row's requests, or the failures of a row that cannot be run."""
        grouped = self._job.grouping is not None
        if self._recorded.failed(row.position) and not (self._whole_shards and grouped):
            return PreparedRow((Admit(row.position, 1),))
        if self._recorded.resolved(row.position) and not self._whole_shards:
            return PreparedRow()
        if grouped and self._recorded.samples(row.position):
            return self._recorded_group(row)
        return self._open_row(row)

    def _recorded_group(self, row: Row | BadRow) -> PreparedRow:
        """Keeps a recorded group as it is: ``n`` may be another by now, as the user vouched for, or as the row says."""
        admission = (Admit(row.position, len(self._recorded.samples(row.position))),)
        if not self._whole_shards:
            return PreparedRow(admission)
        requests = self._requests(row)
        return PreparedRow(admission, () if isinstance(requests, _Refused) else _with_samples(requests))

    def _open_row(self, row: Row | BadRow) -> PreparedRow:
        """Asks for the samples that are missing, or for all of them where shards are run whole."""
        requests = self._requests(row)
        if isinstance(requests, _Refused):
            return PreparedRow(self._failures(requests))
        one = self._job.grouping is not None and self._job.samples == 1  # a group may have one record of all its samples
        admission = Admit(row.position, 1 if one else sum(len(request.samples) for request in requests))
        done = set[int]() if self._whole_shards else self._recorded.samples(row.position)
        return PreparedRow((admission,), _with_samples([request.without(done) for request in requests]))

    def _requests(self, row: Row | BadRow) -> list[AnyRequest] | _Refused:
        """Returns all requests of the row, or why it cannot be run."""
        if isinstance(row, BadRow):
            return _Refused(bad_row_failure(row), None)
        try:
            requests: list[AnyRequest] = self._job.requests(row)
        except RowError as error:
            return _Refused(row_failure(row, error.stage, error.name, str(error)), None)
        samples = {sample for request in requests for sample in request.samples}
        if row.position in self._fatal:
            stage = "generate" if any(isinstance(request, Request) for request in requests) else "score"
            return _Refused(row_failure(row, stage, "EngineAborted", self._fatal[row.position]), samples)
        for request in requests:
            try:
                problem = self._check(request)
            except RowError as error:
                return _Refused(row_failure(row, error.stage, error.name, str(error)), samples)
            if problem:
                return _Refused(row_failure(row, "too_long", RowError.__name__, problem), samples)
        return requests

    def _failures(self, refused: _Refused) -> tuple[Admit | Failure, ...]:
        """Returns the failure of the whole row, or one failure for each missing sample where some samples are recorded.

        The row could be run before: the input, the settings or the room for it have changed, or the process died of it.
        Where the row's samples are unknown, they are all up to the last recorded one, or as many as every row has.
        Where each row says how many it has, one sample after the last stands for those that may be missing.
        """
        failure, samples = refused.failure, refused.samples
        done = self._recorded.samples(failure.row)
        if self._recorded.resolved(failure.row):
            return ()
        if not done:
            return (failure,)
        if samples is None:
            samples = set(range(max(self._job.samples or 0, max(done) + 1)))
            if self._job.samples is None and samples == done:
                samples.add(len(done))
        return (Admit(failure.row, len(samples)), *(replace(failure, sample=sample) for sample in sorted(samples - done)))


def _with_samples(requests: list[AnyRequest]) -> tuple[AnyRequest, ...]:
    return tuple(request for request in requests if request.samples)
