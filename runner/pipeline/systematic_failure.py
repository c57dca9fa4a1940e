"""Finds out whether the first rows of a run all fail alike before the model has work: then so would the rest.

A wrong column or a wrong format does that, and so do rows too long for the memory that a loaded model leaves. Reads few rows, and only
until one can be done.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from ...configs.visible import visible
from ..core.errors import DataError
from ..core.outcomes import Failure
from ..core.requests import AnyRequest, BadRow, Row
from ..core.shard_layout import Layout
from .job import Job
from .row_requests import NOTHING_RECORDED, RecordedRows, RowRequests

RowCheck = Callable[[AnyRequest], str | None]  # says why a request cannot be run, or None

FIRST_ROWS = 100
FEWEST = 10  # rows: less prove nothing, and cost nothing


def every_request(_: AnyRequest) -> None:
    """Says of no request that it cannot be run, before the loaded model shows what can."""


def require_sound_rows(job: Job, rows: Iterable[Row | BadRow], layout: Layout, check: RowCheck = every_request) -> None:
    """Raises DataError where the first of ``rows``, none of which is recorded, all fail alike."""
    row_requests = RowRequests(job, RecordedRows(NOTHING_RECORDED, layout), check, {}, whole_shards=False)
    failures: list[Failure] = []
    for row in islice(rows, FIRST_ROWS):
        prepared = row_requests.prepare(row)
        if prepared.requests:
            return
        failures += [message for message in prepared.messages if isinstance(message, Failure)]
    if (first := systematic_failure(failures, len(failures))) is not None:
        raise DataError(
            f"the first {len(failures):,} rows all failed at {first.stage}, and nothing was run: {visible(first.message)}. Mend the config "
            "or the data, then run the same command; on_error: quarantine_all sets such rows aside and goes on"
        )


def systematic_failure(failures: Sequence[Failure], rows: int) -> Failure | None:
    """Returns the first of the ``failures`` of ``rows`` rows, given in order, if the first rows all failed alike; else None."""
    first = failures[: min(rows, FIRST_ROWS)]
    if len(first) < max(FEWEST, min(rows, FIRST_ROWS)) or first[-1].row - first[0].row >= len(first):
        return None
    return first[0] if len({(failure.stage, failure.error) for failure in first}) == 1 else None
