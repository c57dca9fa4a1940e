"""Rows that wait for a worker, and what speaks against them: the workers that have gone with them.

Most losses are nobody's fault: a cable, a machine that is switched off, a kill from outside. So a loss is taken back where the worker
comes back, and for a whole shard where records of it came before the loss: rows that kill do so each time at the same place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..core.requests import BadRow, Row
from ..core.shard_layout import Place
from ..store.shard_ledger import RecordedRow

LOSSES_TOGETHER = 2  # rows whose workers have gone so often are taken apart
LOSSES_ALONE = 2  # a row that runs alone is given up after so many more


@dataclass(slots=True)
class RowSet:
    """Rows of one shard that wait for a worker. died: labels of workers that have gone with them. alone: no others beside them.

    beyond: only workers with room for longer rows than so many tokens can do them. no_room: labels of workers that have no room for
    these rows together, which must not be divided, with what they said. kept_until: their worker, which was lost, may come back for them
    before; till then others get them only where nothing else is left.
    """

    shard: int
    rows: list[Row | BadRow]
    recorded: tuple[Place, ...] = ()
    died: tuple[str, ...] = ()
    alone: bool = False
    beyond: int = 0
    no_room: dict[str, str] = field(default_factory=dict[str, str])
    kept_until: float = 0.0

    @property
    def positions(self) -> list[int]:
        """The rows' positions."""
        return [row.position for row in self.rows]

    @property
    def held_up(self) -> bool:
        """True where some worker has no room for these rows."""
        return bool(self.beyond or self.no_room)

    @property
    def losses(self) -> int:
        """How many workers have gone with these rows, as far as the rows may be to blame."""
        return len(self.died)

    def part(self, rows: Sequence[Row | BadRow]) -> "RowSet":
        """Returns some of the rows, with all that is known of them."""
        places = {row.position for row in rows}
        recorded = tuple(place for place in self.recorded if place[0] in places)
        return replace(self, rows=list(rows), recorded=recorded)

    def halves(self) -> list["RowSet"]:
        """Returns the second half and the first, each to run alone. Of what spoke against all only losses together count for each."""
        half, parts = len(self.rows) // 2, list[RowSet]()
        for rows in (self.rows[half:], self.rows[:half]):
            part = self.part(rows)
            part.died, part.alone = self.died[-LOSSES_TOGETHER:], True
            parts.append(part)
        return parts


def clear_returned(label: str, waiting: Iterable[RowSet]) -> None:
    """Takes back what was noted against rows when a worker was lost: it is there again."""
    for rows in waiting:
        rows.died = tuple(each for each in rows.died if each != label)


def weigh_loss(lost: RowSet, states: Sequence[RecordedRow], others: Iterable[RowSet]) -> None:
    """Takes back the loss of a shard of which records have come since it was given.

    Then workers die without cause, and the first loss of each of the ``others`` is taken back, too.
    """
    if sum(len(state.samples) for state in states) <= len(lost.recorded):
        return
    lost.died = lost.died[:-1]
    for rows in others:
        if rows.shard != lost.shard:
            rows.died = rows.died[1:]
