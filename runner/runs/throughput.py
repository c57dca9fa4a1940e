"""Measures how fast a run goes and how long it still takes, and says so in a line.

Callers pass the time in. Knows neither terminals nor threads.
"""

from collections import deque
from dataclasses import dataclass, field

from ..core.units import short_count

RATE_SECONDS = 60.0  # tokens per second are measured over this time
LEFT_SECONDS = 600.0  # the time left is estimated over this time: a window's longest rows come first, so a minute says little


@dataclass(slots=True, frozen=True)
class Counts:
    """Progress of a run. rows: resolved ones, with those of earlier sessions. of: all rows. errors: quarantined ones.

    policy: the version of the policy that generates, where there is one. workers: those that are there, None for a run without any.
    """

    rows: int
    of: int
    errors: int
    policy: int | None = None
    workers: int | None = None


@dataclass(slots=True)
class RecentRate:
    """A count over the last ``span`` seconds: (seconds, count), oldest first."""

    span: float
    marks: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def add(self, now: float, count: int) -> None:
        """Notes the count at ``now``."""
        self.marks.append((now, count))
        while len(self.marks) > 2 and self.marks[1][0] <= now - self.span:
            self.marks.popleft()

    @property
    def rate(self) -> float:
        """Increase of the count per second; 0 where it stands still or went back."""
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return max(0, after - before) / (end - start) if end > start else 0.0


@dataclass(slots=True)
class Pace:
    """The speed of a run, by the counts given to ``add``. tokens: of prompts and completions in this session."""

    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0))
    tokens: int = 0
    _tokens: RecentRate = field(default_factory=lambda: RecentRate(RATE_SECONDS))
    _rows: RecentRate = field(default_factory=lambda: RecentRate(LEFT_SECONDS))

    def add(self, now: float, counts: Counts, tokens: int) -> None:
        """Adds how far the run is at ``now``, in seconds of any clock that does not go back."""
        self.counts, self.tokens = counts, tokens
        self._tokens.add(now, tokens)
        self._rows.add(now, counts.rows - counts.errors)  # failed rows take no time, so they say nothing about the others

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over the last minute."""
        return self._tokens.rate

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all rows are resolved, by the rows finished in the last ten minutes; None before the first."""
        rate = self._rows.rate
        return (self.counts.of - self.counts.rows) / rate if rate else None

    @property
    def pieces(self) -> list[str]:
        """The parts of the line, the most important first."""
        at, left = self.counts, self.seconds_left
        share = int(1000 * at.rows / at.of) / 10 if at.of else 100.0  # rounded down: 100 % means all rows
        pieces = [f"{at.rows:,} of {at.of:,} rows ({share:.0f} %)" if share == 100 else f"{at.rows:,} of {at.of:,} rows ({share:.1f} %)"]
        pieces.append(f"{self.tokens_per_second:,.0f} tok/s")
        pieces += [f"{duration(left)} left"] if left is not None and left >= 1 else []
        pieces += [f"{at.errors:,} {'error' if at.errors == 1 else 'errors'}"] if at.errors else []
        pieces += [f"policy {at.policy}"] if at.policy is not None else []
        pieces += [f"{at.workers:,} {'worker' if at.workers == 1 else 'workers'}"] if at.workers is not None else []
        return [*pieces, f"{short_count(self.tokens)} tokens"]

    def line(self, width: int | None = None) -> str:
        """Joins the pieces into one line, as many as fit into ``width`` columns, but at least the first."""
        line, *rest = self.pieces
        for piece in rest:
            if width is None or len(line) + 2 + len(piece) <= width:
                line += f", {piece}"
        return line


def duration(seconds: float) -> str:
    """Formats a duration in its two largest units: "3 d 4 h", "2 h 5 min", "40 s"."""
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((at for at, (value, _) in enumerate(units) if value), len(units) - 1)
    return " ".join(f"{value} {unit}" for value, unit in units[first : first + 2] if value or len(units) == first + 1)
