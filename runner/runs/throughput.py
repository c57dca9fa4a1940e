"""How fast a run goes and how long it still takes, by what it has counted so far, and a line that says so.

Time is told from outside. Knows neither terminals nor threads.
"""

from collections import deque
from dataclasses import dataclass, field

RATE_SECONDS = 60.0  # what tokens a second are told over
LEFT_SECONDS = 600.0  # what the time left is judged by: rows of a window come longest first, and a minute of them says little


@dataclass(slots=True, frozen=True)
class Counts:
    """How far a run is: input rows resolved (those of earlier sessions too), of how many, and quarantined ones.

    policy: the version of the policy that generates, where there is one.
    """

    rows: int
    of: int
    errors: int
    policy: int | None = None


@dataclass(slots=True)
class _Recent:
    """A count over time, as far back as is looked at: (seconds, count), oldest first."""

    span: float
    marks: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def add(self, now: float, count: int) -> None:
        self.marks.append((now, count))
        while len(self.marks) > 2 and self.marks[1][0] <= now - self.span:
            self.marks.popleft()

    @property
    def rate(self) -> float:
        """Of the count, a second; 0 where it stands still or went back."""
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return max(0, after - before) / (end - start) if end > start else 0.0


@dataclass(slots=True)
class Pace:
    """What has been counted; ``add`` takes in counts of a moment, in order. tokens: this session's, of prompts and completions."""

    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0))
    tokens: int = 0
    _tokens: _Recent = field(default_factory=lambda: _Recent(RATE_SECONDS))
    _rows: _Recent = field(default_factory=lambda: _Recent(LEFT_SECONDS))

    def add(self, now: float, counts: Counts, tokens: int) -> None:
        """Takes in how far the run is at ``now`` (seconds of any clock that does not go back)."""
        self.counts, self.tokens = counts, tokens
        self._tokens.add(now, tokens)
        self._rows.add(now, counts.rows - counts.errors)  # what cannot be done is told at once, and says nothing of the others

    @property
    def tokens_per_second(self) -> float:
        """Over the last minute."""
        return self._tokens.rate

    @property
    def seconds_left(self) -> float | None:
        """Until all rows are resolved, by the rows that the last ten minutes finished; None before the first."""
        rate = self._rows.rate
        return (self.counts.of - self.counts.rows) / rate if rate else None

    @property
    def pieces(self) -> list[str]:
        """What there is to say, the most important first."""
        at, left = self.counts, self.seconds_left
        share = int(1000 * at.rows / at.of) / 10 if at.of else 100.0  # rounded down: 100 % is said of what is whole
        found = [f"{at.rows:,} of {at.of:,} rows ({share:.0f} %)" if share == 100 else f"{at.rows:,} of {at.of:,} rows ({share:.1f} %)"]
        found.append(f"{self.tokens_per_second:,.0f} tok/s")
        found += [f"{duration(left)} left"] if left is not None and left >= 1 else []
        found += [f"{at.errors:,} {'error' if at.errors == 1 else 'errors'}"] if at.errors else []
        found += [f"policy {at.policy}"] if at.policy is not None else []
        return [*found, f"{short(self.tokens)} tokens"]

    def line(self, width: int | None = None) -> str:
        """The pieces on one line, as many as ``width`` columns hold; the first always stands there."""
        line, *rest = self.pieces
        for piece in rest:
            if width is None or len(line) + 2 + len(piece) <= width:
                line += f", {piece}"
        return line


def short(count: int) -> str:
    """A count in three digits: "999", "12.3k", "1.23M"."""
    value, units = float(count), ["", "k", "M", "G"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    digits = 0 if not count >= 1000 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{units[0]}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units: "3 d 4 h", "2 h 5 min", "40 s"."""
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((at for at, (value, _) in enumerate(units) if value), len(units) - 1)
    return " ".join(f"{value} {unit}" for value, unit in units[first : first + 2] if value or len(units) == first + 1)
