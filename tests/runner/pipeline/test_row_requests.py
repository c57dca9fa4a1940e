"""Tests a row's requests: recorded samples are not requested again, and a row that cannot run fails once."""

from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.requests import BadRow, Request, Row
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.pipeline.row_requests import Admit, RecordedRows, RowRequests
from mlx_bulk.runner.store.shard_ledger import Ledger

from ..support.made_up_jobs import OneColumn, recovered

ROWS = 4
RECORDED = st.sets(st.integers(0, 5))


def requests_of(position: int, recorded: set[int], check: str | None = None, fatal: str | None = None, whole: bool = False) -> RowRequests:
    """Prepares rows of a shard of four, where these samples of the row at ``position`` are recorded."""
    ledger = Ledger(0, ROWS)
    for sample in recorded:
        ledger.add_result(position, sample)
    rows = RecordedRows(recovered({0: ledger}), Layout(1 << 20, ROWS))
    return RowRequests(OneColumn(), rows, lambda _: check, {} if fatal is None else {position: fatal}, whole)


@given(st.integers(0, ROWS - 1), st.integers(1, 6), RECORDED, st.booleans())
def test_the_samples_that_are_missing_are_asked_for_or_all_where_shards_are_run_whole(
    position: int, n: int, recorded: set[int], whole: bool
):
    prepared = requests_of(position, recorded, whole=whole).prepare(Row(position, "key", {"n": n}))
    asked = [sample for request in prepared.requests for sample in request.samples]
    assert asked == [sample for sample in range(n) if whole or sample not in recorded]
    assert prepared.messages == (Admit(position, n),)
    assert all(isinstance(request, Request) and request.row == position for request in prepared.requests)


@given(st.integers(1, 6), RECORDED, st.booleans())
def test_a_row_that_does_not_fit_fails_whole_or_by_the_samples_that_are_missing(n: int, recorded: set[int], fatal: bool):
    problem = "the process died of it" if fatal else None
    prepared = requests_of(2, recorded, check="too large", fatal=problem).prepare(Row(2, "key", {"n": n}))
    failures = [message for message in prepared.messages if isinstance(message, Failure)]
    assert prepared.requests == ()
    assert [failure.sample for failure in failures] == ([sample for sample in range(n) if sample not in recorded] if recorded else [None])
    assert {failure.stage for failure in failures} <= {"generate" if fatal else "too_long"}
    assert [message for message in prepared.messages if isinstance(message, Admit)] == ([Admit(2, n)] if recorded else [])


@given(RECORDED)
def test_an_unreadable_line_keeps_its_records_and_fails_at_least_once(recorded: set[int]):
    """The row would say how many samples it has: one after the last recorded stands for those that may be missing."""
    prepared = requests_of(1, recorded).prepare(BadRow(1, "not valid JSON", "{oops"))
    failed = [message.sample for message in prepared.messages if isinstance(message, Failure)]
    if not recorded:
        assert failed == [None]
        return
    last = max(recorded)
    assert failed == ([sample for sample in range(last) if sample not in recorded] or [last + 1])
