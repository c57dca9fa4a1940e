"""Rows that no worker can do: what goes into ``errors/`` for them is what a run of one process writes there."""

from dataclasses import replace

from ..core.errors import ModelError
from ..core.outcomes import Failure
from ..core.requests import BadRow, Row
from ..leasing.row_set import RowSet
from ..pipeline.model_work import OpenRun
from ..pipeline.recorder import first_failure
from ..pipeline.row_requests import NOTHING_RECORDED, Admit, RecordedRows, RowRequests
from ..pipeline.systematic_failure import every_request
from ..store.shard_ledger import ledger_of
from .landing import Landing


class Quarantine:
    """Takes rows of a run. With ``on_error: fail`` the first one ends the run with DataError."""

    def __init__(self, run: OpenRun, landing: Landing):
        self._run, self._landing = run, landing

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

    def _take(self, row: Row | BadRow, rows: RowSet, why: str) -> None:
        layout = self._run.layout
        own = [place for place in rows.recorded if place[0] == row.position]
        ledger = ledger_of(layout.rows_of(rows.shard), layout, own)
        recorded = RecordedRows(replace(NOTHING_RECORDED, done={rows.shard: ledger}), layout)
        made = RowRequests(self._run.spec.job, recorded, every_request, {row.position: why}, whole_shards=False).prepare(row)
        failures = [message for message in made.messages if isinstance(message, Failure)]
        if failures and self._run.config.on_error == "fail":
            raise first_failure(failures[0], layout.row_of(row.position))
        admitted = [(message.position, message.samples) for message in made.messages if isinstance(message, Admit)]
        self._landing.fail(rows.shard, admitted, failures)
