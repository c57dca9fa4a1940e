"""A run's speed and memory over the time that it worked, from metrics.jsonl: few enough points to draw.

The time in which no process was at work is left out. Knows no charts.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from ...runner.files.checked_lines import read_lines
from ...runner.runs.history import History
from ...runner.store.paths import RunPaths

_POINTS = 160


@dataclass(slots=True, frozen=True)
class Interval:
    """Up to ``end`` seconds of work, ``seconds`` long: tokens a second, peak memory of the process so far in bytes, share of padding.

    begins: it is the first of a start.
    """

    end: float
    seconds: float
    tokens_per_second: float
    memory: float | None
    padding: float | None
    begins: bool


def intervals(paths: RunPaths, past: History) -> list[Interval]:
    """The intervals of all starts one behind another, at most about 160: those that are more are joined, neighbours together."""
    starts = [session.started for session in past.sessions]
    found: list[Interval] = []
    last: tuple[int, datetime] | None = None
    worked = 0.0
    for line in read_lines(paths.metrics):
        time = datetime.fromisoformat(line["time"])
        if not (session := bisect_right(starts, time)):
            continue
        begins = last is None or last[0] != session
        before = starts[session - 1] if last is None or begins else last[1]
        # Times are in whole seconds: what is shorter still took some.
        seconds = max(0.5, (time - before).total_seconds())
        worked += seconds
        found.append(Interval(worked, seconds, line["tokens_per_second"], line.get("peak_memory_bytes"), line.get("padding_waste"), begins))
        last = session, time
    if len(found) <= _POINTS:
        return found
    edges = [round(at * len(found) / _POINTS) for at in range(_POINTS + 1)]
    return [_joined(found[start:end]) for start, end in pairwise(edges)]


def _joined(some: Sequence[Interval]) -> Interval:
    seconds = sum(each.seconds for each in some)
    rate = sum(each.tokens_per_second * each.seconds for each in some) / seconds
    memory = max((each.memory for each in some if each.memory is not None), default=None)
    return Interval(some[-1].end, seconds, rate, memory, some[-1].padding, any(each.begins for each in some))
