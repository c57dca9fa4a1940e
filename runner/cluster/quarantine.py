"""Rows that no worker can do: what goes into ``errors/`` for them is what a run of one process writes there."""

from dataclasses import replace

from ..core.errors import ModelError, OutOfRoom
from ..core.outcomes import Failure
from ..core.requests import BadRow, Row
from ..leasing.row_set import RowSet
from ..pipeline.job import placed
from ..pipeline.model_work import OpenRun
from ..pipeline.recorder import first_failure
from ..pipeline.row_requests import NOTHING_RECORDED, Admit, RecordedRows, RowRequests
from ..store.shard_ledger import ledger_of
from .frame_intake import FrameIntake


class Quarantine:
    """Takes rows of a run. With ``on_error: fail`` the first one ends the run with DataError."""

    def __init__(self, run: OpenRun, intake: FrameIntake):
        self._run, self._intake = run, intake
        self._unfit: dict[int, tuple[int, str]] = {}  # by position: how long a row may be for the worker that has said so, and its words

    def note_unfit(self, position: int, longest: int, why: str) -> None:
        """Notes a row for which a worker has no room. longest: tokens of the longest row that it has room for."""
        if longest >= self._unfit.get(position, (0, ""))[0]:
            self._unfit[position] = longest, why

    def divide(self, rows: RowSet) -> list[RowSet]:
        """Divides the rows, so that those of each set are beyond the same worker, or beyond none. ``rows`` becomes the first set."""
        by_room: dict[int, list[Row | BadRow]] = {}
        for row in rows.rows:
            by_room.setdefault(self._unfit.get(row.position, (0, ""))[0], []).append(row)
        first, *others = [replace(rows.part(some), beyond=room) for room, some in by_room.items()] or [rows]
        rows.rows, rows.recorded, rows.beyond = first.rows, first.recorded, first.beyond
        return [rows, *others]

    def take_unfit(self, rows: RowSet, workers: int) -> None:
        """Takes rows for which no worker has room. workers: how many have joined."""
        largest = "" if workers == 1 else f" (on the worker with the most room; {workers} have joined)"
        for row in rows.rows:
            why = self._unfit[row.position][1]
            why = why.removesuffix(placed("", row)) if isinstance(row, Row) else why  # the place is told behind all of it
            self._take(row, rows, too_long=why + largest)

    def require_room(self, rows: RowSet | None) -> None:
        """Raises OutOfRoom for rows that must stay together, and that no worker has room for. Does nothing where there are none."""
        if rows is None:
            return
        *_, (worker, why) = rows.no_room.items()
        raise OutOfRoom(
            f"shard {rows.shard}: no worker that has joined has room for it, and all other shards that they have room for are done. "
            f"{worker}: {why}; or start a worker with more memory, and continue with the same command (without --overwrite)"
        )

    def take_lost(self, rows: RowSet) -> None:
        """Takes rows that workers have died with. Raises ModelError where batches are not taken apart."""
        if self._run.config.batch.deterministic:
            raise ModelError(
                f"{rows.losses} workers have died with shard {rows.shard}; batch.deterministic does not take a batch apart to find "
                "the row that does it. Finished rows are safe"
            )
        self.take_fatal(rows, f"{rows.losses} workers died while they had this row, the last ones with no other")

    def take_fatal(self, rows: RowSet, why: str) -> None:
        """Takes rows that are not run any more. Samples that are recorded stay; the others fail."""
        for row in rows.rows:
            self._take(row, rows, why)

    def _take(self, row: Row | BadRow, rows: RowSet, fatal: str = "", too_long: str = "") -> None:
        layout = self._run.layout
        own = [place for place in rows.recorded if place[0] == row.position]
        ledger = ledger_of(layout.rows_of(rows.shard), layout, own)
        recorded = RecordedRows(replace(NOTHING_RECORDED, done={rows.shard: ledger}), layout)
        fatals = {row.position: fatal} if fatal else {}
        made = RowRequests(self._run.spec.job, recorded, lambda _: too_long, fatals, whole_shards=False).prepare(row)
        failures = [message for message in made.messages if isinstance(message, Failure)]
        if failures and self._run.config.on_error == "fail":
            raise first_failure(failures[0], layout.row_of(row.position))
        admitted = [(message.position, message.samples) for message in made.messages if isinstance(message, Admit)]
        self._intake.fail(rows.shard, admitted, failures)
