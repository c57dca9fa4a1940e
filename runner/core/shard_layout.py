"""Maps the rows of a run to rounds, shards and positions.

A run makes one or more rounds over its input, and each round is cut into shards. A shard lies within one round, so it holds an input
row at most once. Knows only counts, no files.
"""

from dataclasses import dataclass
from typing import Any, Self

WINDOW_ROWS = 4096
PICTURE_ROWS = 512  # of a window whose rows may have pictures: each holds several kB more, or its picture's bytes

Place = tuple[int, int]  # a row's position, and a sample of it or WHOLE (see shard_ledger)


@dataclass(slots=True, frozen=True)
class Layout:
    """``rounds`` passes over ``rows`` input rows in shards of ``rows_per_shard``; the last shard of a round may be shorter.

    Positions leave a gap after a short shard, so that ``position // rows_per_shard`` is a row's shard (5 rows, 2 a shard):

        round     0            1
        shard     0    1    2  3    4    5
        row       0 1  2 3  4  0 1  2 3  4
        position  0 1  2 3  4  6 7  8 9  10
    """

    rows: int
    rows_per_shard: int
    rounds: int = 1

    @classmethod
    def of(cls, run: dict[str, Any]) -> Self:
        """Returns the layout of a run, by its run.json."""
        return cls(covered_rows(run["inputs"]), int(run["config"]["batch"]["rows_per_shard"]), rounds_of(run))

    @property
    def total(self) -> int:
        """Rows of all rounds."""
        return self.rows * self.rounds

    @property
    def shards_a_round(self) -> int:
        """Shards of one round."""
        return -(-self.rows // self.rows_per_shard)

    @property
    def positions(self) -> int:
        """Positions of one round, with the gap after a short shard."""
        return self.shards_a_round * self.rows_per_shard

    @property
    def shards(self) -> int:
        """Shards of all rounds."""
        return self.shards_a_round * self.rounds

    def rows_of(self, shard: int) -> range:
        """Returns the input rows of ``shard``; an empty range where the run has no such shard."""
        if not 0 <= shard < self.shards:
            return range(self.rows, self.rows)
        start = shard % self.shards_a_round * self.rows_per_shard
        return range(start, min(start + self.rows_per_shard, self.rows))

    def shard_of(self, position: int) -> int:
        """Returns the shard of the row at ``position``."""
        return position // self.rows_per_shard

    def round_of(self, position: int) -> int:
        """Returns the round of the row at ``position``, counted from 0."""
        return self.shard_of(position) // max(1, self.shards_a_round) if self.rounds > 1 else 0

    def row_of(self, position: int) -> int:
        """Returns the number in the input of the row at ``position``."""
        return position - self.round_of(position) * self.positions

    def position(self, around: int, row: int) -> int:
        """Returns the position of the input row ``row`` in round ``around``."""
        return around * self.positions + row

    def has(self, position: int) -> bool:
        """Returns True when the run has a row at ``position``."""
        return position >= 0 and self.row_of(position) in self.rows_of(self.shard_of(position))


def rounds_of(run: dict[str, Any]) -> int:
    """Returns how many passes over its input a run makes, by its run.json."""
    return int(run["config"].get("rounds", 1))


def covered_rows(inputs: dict[str, Any]) -> int:
    """Returns how many rows the inputs have under their limit."""
    rows = sum(source["rows"] for source in inputs["sources"])
    return rows if inputs["limit"] is None else min(rows, inputs["limit"])


def total_rows(run: dict[str, Any]) -> int:
    """Returns how many rows a run has in all its rounds, by its run.json."""
    return covered_rows(run["inputs"]) * rounds_of(run)


def window_size(rows_per_shard: int, one_shard: bool, pictures: bool = False) -> int:
    """Returns how many rows make a window, the rows that are handed to the model at once.

    A window holds ``one_shard`` where batches or policies go by the shard, else as many shards as fit in WINDOW_ROWS rows, at least one.
    pictures: rows may have some; then as many as fit in PICTURE_ROWS, or so many rows of a larger shard.
    """
    if one_shard:
        return rows_per_shard
    most = PICTURE_ROWS if pictures else WINDOW_ROWS
    return most if pictures and rows_per_shard > most else max(1, most // rows_per_shard) * rows_per_shard
