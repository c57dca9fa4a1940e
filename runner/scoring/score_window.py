"""The state of a window of requests while it is scored."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..scheduler.prefix_tree import Segment
from .partial_scores import PartialScores


@dataclass(slots=True)
class ScoreWindow:
    """A window's state: its unfinished rows, to which segments refer by index, and the batch that is computed now.

    ``shared``: passages share the prefixes that they have in common. ``stopped`` is asked before each batch and each call.
    """

    rows: list[PartialScores]
    shared: bool
    stopped: Callable[[], bool]
    batch: list[Segment] = field(default_factory=list[Segment])

    def unfinished(self) -> bool:
        """Drops the rows that are done. Returns True while others are left."""
        self.rows, self.batch = [row for row in self.rows if not row.done], []
        return bool(self.rows)

    @property
    def parts(self) -> set[tuple[int, int]]:
        """Returns what the batch scores: input rows and the passages of each."""
        owners = (owner for segment in self.batch for part in segment.reads for owner in part.owners)
        return {(self.rows[row].request.row, passage) for row, passage in owners}
