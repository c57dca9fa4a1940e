"""The rows of the input that no worker was given yet, in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout


@dataclass(slots=True)
class InputRows:
    """Rows that are taken in turn, each set of them from one shard. next: the first of them, None after the last."""

    rows: Iterator[Row | BadRow]
    next: Row | BadRow | None = None

    def __post_init__(self) -> None:
        self.next = next(self.rows, None)

    def take(self, layout: Layout, most: int | None) -> list[Row | BadRow]:
        """Returns up to ``most`` rows (None: all) of the shard whose turn it is."""
        taken: list[Row | BadRow] = []
        while self.next is not None and (most is None or len(taken) < most):
            if taken and layout.shard_of(self.next.position) != layout.shard_of(taken[0].position):
                break
            taken.append(self.next)
            self.next = next(self.rows, None)
        return taken
