"""Leasers of a thousand rows in ten shards, and what tests ask of them."""

from collections.abc import Callable, Iterable, Set

from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.leasing.leaser import Leaser
from mlx_bulk.runner.leasing.open_lease import OpenLease
from mlx_bulk.runner.leasing.row_set import RowSet
from mlx_bulk.runner.pipeline.row_requests import RecordedRows
from mlx_bulk.runner.store.recovery import Recovered
from mlx_bulk.runner.store.shard_ledger import Ledger, RecordedRow

LAYOUT = Layout(1000, 100)


def rows_of(positions: Iterable[int]) -> list[Row]:
    return [Row(position, str(position), {}) for position in positions]


def leaser(
    rows: int = 1000,
    done: dict[int, Ledger] | None = None,
    *,
    whole_shards: bool = False,
    speculate: bool = True,
    room: int = 64,
    suits: Callable[[str, RowSet], bool] = lambda worker, rows: True,
    finished: Callable[[OpenLease, Set[int], float], None] = lambda lease, positions, now: None,
) -> Leaser:
    """Makes a leaser. room: rows that the engines of the workers "slow" and "fast" have at once."""
    recorded = RecordedRows(Recovered(frozenset(), done or {}, {}, {}, {}, 0, 0, 0), LAYOUT)
    given = iter(rows_of(range(rows)))
    made = Leaser(
        given,
        LAYOUT,
        recorded,
        session="s",
        left=rows,
        lease_seconds=10,
        whole_shards=whole_shards,
        speculate=speculate,
        suits=suits,
        finished=finished,
    )
    for worker in ("slow", "fast"):
        made.equip(worker, room)
    return made


def given(lease: OpenLease | None) -> OpenLease:
    assert lease is not None
    return lease


def nothing(rows: RowSet) -> list[RecordedRow]:
    return [RecordedRow(position, False) for position in rows.positions]
