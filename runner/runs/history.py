"""Reads a run's history from sessions.jsonl and metrics.jsonl: its starts and how they ended, its speed, its tokens.

Reads whole lines only, also while a process writes them. Knows no results.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from ..files.checked_lines import read_lines
from ..store.paths import RunPaths

_RECENT = 20  # lines of metrics, ten minutes: the time left is estimated by these
TOKENS = ("prompt_tokens", "generated_tokens", "scored_tokens")
_READERS = ("embed", "classify")  # jobs that feed texts and write none, so that there is one kind of token


def token_counts(tokens: Mapping[str, int], config: Mapping[str, Any] | None) -> list[str]:
    """Returns the counts above 0 with their names, as ``226 prompt``; for a job with one kind of token the number alone."""
    if (config or {}).get("job") in _READERS:
        return [f"{tokens.get('prompt_tokens', 0):,}"]
    return [f"{count:,} {name.removesuffix('_tokens')}" for name in TOKENS if (count := tokens.get(name))]


@dataclass(slots=True, frozen=True)
class MetricsPoint:
    """One line of metrics.jsonl. rows, errors: of the run. tokens: of the session. tokens_per_second: of the interval."""

    time: datetime
    rows: int
    errors: int
    tokens: dict[str, int]
    tokens_per_second: float
    peak_memory_bytes: float | None = None
    padding_waste: float | None = None


@dataclass(slots=True)
class Session:
    """One start. ended: None where the process died or is at work. how: complete, stopped, or the error's class.

    words: of its command line after ``mlx-bulk``, empty where they were not noted. before: rows of the run that were resolved at the
    start. rows, errors: of the run at the end.
    """

    started: datetime
    pid: int
    words: tuple[str, ...] = ()
    before: int | None = None
    ended: datetime | None = None
    how: str = ""
    message: str = ""
    rows: int | None = None
    errors: int | None = None
    points: list[MetricsPoint] = field(default_factory=list[MetricsPoint])

    @property
    def seconds(self) -> float:
        """Seconds from the loaded model to the last line of metrics."""
        return (self.points[-1].time - self.started).total_seconds() if self.points else 0.0


@dataclass(slots=True, frozen=True)
class History:
    """All sessions of a run, in order."""

    sessions: list[Session]

    @property
    def points(self) -> list[MetricsPoint]:
        """All lines of metrics, in order."""
        return [point for session in self.sessions for point in session.points]

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of all sessions together, by kind. Work that was done twice counts twice."""
        last = [session.points[-1].tokens for session in self.sessions if session.points]
        return {name: sum(tokens[name] for tokens in last) for name in TOKENS}

    @property
    def seconds(self) -> float:
        """Seconds of work in all sessions together."""
        return sum(session.seconds for session in self.sessions)

    @property
    def tokens_per_second(self) -> float | None:
        """The mean over all intervals, weighted by their lengths; None before the first."""
        weighted: list[tuple[float, float]] = []
        for session in self.sessions:
            times = [session.started, *(point.time for point in session.points)]
            lengths = [(after - before).total_seconds() for before, after in pairwise(times)]
            weighted += zip(lengths, (point.tokens_per_second for point in session.points), strict=True)
        if not weighted:
            return None
        whole = sum(length for length, _ in weighted)
        # Times are in whole seconds: the intervals of a shorter run have length 0.
        return sum(length * rate for length, rate in weighted) / whole if whole else sum(rate for _, rate in weighted) / len(weighted)

    @property
    def rows_per_second(self) -> float | None:
        """The rate over the last ten minutes of the last session; None where it resolved no row."""
        if not self.sessions or not self.sessions[-1].points:
            return None
        session = self.sessions[-1]
        # A session that was killed resolved rows after its last line: they would count for this one, and little time would seem left.
        before = session.before
        if before is None:
            before = next((point.rows for other in reversed(self.sessions[:-1]) for point in reversed(other.points)), 0)
        marks = [(session.started, before), *((point.time, point.rows) for point in session.points)][-_RECENT - 1 :]
        rows, seconds = marks[-1][1] - marks[0][1], (marks[-1][0] - marks[0][0]).total_seconds()
        return rows / seconds if rows > 0 and seconds > 0 else None


def history(paths: RunPaths) -> History:
    """Reads the history of the run directory. Leaves damaged lines out."""
    sessions: list[Session] = []
    for line in read_lines(paths.sessions):
        if line["event"] == "start":
            sessions.append(Session(datetime.fromisoformat(line["time"]), line["pid"], tuple(line.get("words", ())), line.get("rows")))
        elif line["event"] == "end" and sessions:
            _end(sessions[-1], line)
    starts = [session.started for session in sessions]
    for line in read_lines(paths.metrics):
        point = _point(line)
        if at := bisect_right(starts, point.time):
            sessions[at - 1].points.append(point)
    return History(sessions)


def unchecked_images(paths: RunPaths) -> list[str]:
    """Returns the model types of a run whose pictures nobody compared with transformers."""
    found = [(line, line.get("reference") or {}) for line in read_lines(paths.sessions)]
    return list(dict.fromkeys(kind for notes in found for each in notes if isinstance(kind := each.get("unchecked_images"), str)))


def _end(session: Session, line: dict[str, Any]) -> None:
    session.ended, session.how = datetime.fromisoformat(line["time"]), line["how"]
    session.message, session.rows, session.errors = line.get("message", ""), line.get("rows"), line.get("errors")


def _point(line: dict[str, Any]) -> MetricsPoint:
    return MetricsPoint(
        datetime.fromisoformat(line["time"]),
        line["rows"],
        line["errors"],
        {name: line[name] for name in TOKENS},
        line["tokens_per_second"],
        line.get("peak_memory_bytes"),
        line.get("padding_waste"),
    )
