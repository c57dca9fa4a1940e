"""A run's speed and memory over its working time, in few enough points to draw.

Leaves out the time in which no process was at work. Knows no charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...runner.runs.history import History, Session

_POINTS = 160


@dataclass(slots=True, frozen=True)
class Interval:
    """The time between two lines of metrics. It lasts ``seconds`` and ends after ``end`` seconds of work.

    memory: the process's peak so far, in bytes. padding: its share of the tokens so far. begins: it is the first of a session.
    """

    end: float
    seconds: float
    tokens_per_second: float
    memory: float | None
    padding: float | None
    begins: bool


def intervals(past: History) -> list[Interval]:
    """Returns the intervals of all sessions in order. Where there are more than 160, neighbours are joined."""
    series: list[Interval] = []
    for session in past.sessions:
        _extend(series, session)
    if len(series) <= _POINTS:
        return series
    edges = [round(at * len(series) / _POINTS) for at in range(_POINTS + 1)]
    return [_joined(series[start:end]) for start, end in pairwise(edges)]


def _extend(series: list[Interval], session: Session) -> None:
    before, worked = session.started, series[-1].end if series else 0.0
    for point in session.points:
        # Times are in whole seconds: a shorter interval still took some.
        seconds = max(0.5, (point.time - before).total_seconds())
        worked += seconds
        begins = before is session.started
        series.append(Interval(worked, seconds, point.tokens_per_second, point.peak_memory_bytes, point.padding_waste, begins))
        before = point.time


def _joined(neighbours: Sequence[Interval]) -> Interval:
    seconds = sum(each.seconds for each in neighbours)
    rate = sum(each.tokens_per_second * each.seconds for each in neighbours) / seconds
    memory = max((each.memory for each in neighbours if each.memory is not None), default=None)
    last = neighbours[-1]
    return Interval(last.end, seconds, rate, memory, last.padding, any(each.begins for each in neighbours))
