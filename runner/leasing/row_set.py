"""Rows that wait for a worker, and what is known of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.requests import BadRow, Row
from ..core.shard_layout import Place


@dataclass(slots=True)
class RowSet:
    """Rows of one shard that wait for a worker. losses: how many workers have gone while they worked on them."""

    shard: int
    rows: list[Row | BadRow]
    recorded: tuple[Place, ...] = ()
    losses: int = 0
    alone: bool = False

    @property
    def positions(self) -> list[int]:
        """The rows' positions."""
        return [row.position for row in self.rows]

    def part(self, rows: Sequence[Row | BadRow]) -> "RowSet":
        """Returns some of the rows, with all that is known of them."""
        places = {row.position for row in rows}
        recorded = tuple(place for place in self.recorded if place[0] in places)
        return RowSet(self.shard, list(rows), recorded, self.losses, self.alone)
