"""Counts records that cannot be computed again because their rows no longer give what they gave, by the reason, with their rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..terminal.tables import count_text

_SHOWN = 3  # ranges of rows


@dataclass(slots=True)
class LostRecords:
    """The row of each lost record, by the reason."""

    rows: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def add(self, reason: str, row: int) -> None:
        """Counts a record of ``row``."""
        self.rows.setdefault(reason, []).append(row)

    def counts(self) -> dict[str, int]:
        """Returns how many there are, by the reason."""
        return {reason: len(rows) for reason, rows in self.rows.items()}

    def lines(self) -> Iterator[str]:
        """Yields a line for each reason, which names the rows."""
        for reason, rows in sorted(self.rows.items()):
            yield f"{'':<9}left out: {count_text(len(rows), 'record')}: {reason} ({_named(rows)})"


def _named(rows: list[int]) -> str:
    """Names rows in words, as ``rows 0 to 2, 7``."""
    ranges = list[range]()
    for row in sorted(set(rows)):
        if ranges and ranges[-1].stop == row:
            ranges[-1] = range(ranges[-1].start, row + 1)
        else:
            ranges.append(range(row, row + 1))
    shown = ", ".join(f"{each.start} to {each.stop - 1}" if len(each) > 1 else str(each.start) for each in ranges[:_SHOWN])
    return f"{'row' if len(set(rows)) == 1 else 'rows'} {shown}{', …' if len(ranges) > _SHOWN else ''}"
