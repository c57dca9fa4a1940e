"""How many rows a worker gets next: enough that its batch stays full, and so few that all workers end together.

    rows of a worker      in its batch │ waiting there │ the next lease
    in the middle         ``room``     │ seconds       │ rows for ``lease_seconds``
    towards the end       ``room``     │ less          │ less, down to what it can do until all could be done

Reads no clock and knows no rows, only how many they are.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

REPORT_SECONDS = 2.0  # a worker tells of finished rows at least so often
FIRST_LEASES = 2  # of a worker whose pace is not known, and of any where leases are whole shards
LEAST_LATE = 2.0  # seconds; to have rows that come sooner done twice costs more than it brings
SLOW = 1.5  # rows are late that take so many times longer than where they could be done
_ROOM_SHARE = 4  # a lease is a quarter of a batch at least
_LEAST_SECONDS = 1e-3
_SECONDS_SHARE = 100  # and no shorter than so small a part of ``lease_seconds``


class WorkerPace:
    """The pace of one worker. window: seconds to look back. room: rows that its engine has at once.

    Between ``begin`` and ``pause`` it has rows; other time does not count.
    """

    def __init__(self, window: float, room: int):
        self.room = room
        self._window = window
        self._marks: deque[tuple[float, int]] = deque()  # when so many more rows were finished; the first one begins the count
        self._rows = 0  # of all marks but the first
        self._paused: float | None = None

    def begin(self, now: float) -> None:
        """Notes that the worker has rows; does nothing where it has some already."""
        if not self._marks:
            self._marks.append((now, 0))
        elif self._paused is not None:
            gap = now - self._paused
            self._marks = deque((time + gap, rows) for time, rows in self._marks)
        self._paused = None

    def pause(self, now: float) -> None:
        """Notes that the worker has no rows left, or is away."""
        if self._paused is None:
            self._paused = now

    def add(self, rows: int, now: float) -> None:
        """Notes rows that were finished."""
        if not self._marks:
            self._marks.append((now, 0))
            return
        self._marks.append((now, rows))
        self._rows += rows
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window:
            self._marks.popleft()
            self._rows -= self._marks[0][1]

    def untold(self, now: float) -> int | None:
        """Returns how many rows it may have finished since it told of some; None before the first ones."""
        pace = self.rows_a_second(now)
        return None if pace is None else ceil(pace * min(max(0.0, now - self._marks[-1][0]), REPORT_SECONDS))

    def rows_a_second(self, now: float) -> float | None:
        """Returns the rows that it finishes a second; None before the first ones. It falls while a worker that should tell does not."""
        if not self._rows:
            return None
        begun, told = self._marks[0][0], self._marks[-1][0]
        pace = self._rows / max(told - begun, _LEAST_SECONDS)
        usual = 2 * max(REPORT_SECONDS, self.room / pace)
        silent = (self._paused or now) - told - usual
        return pace if silent <= 0 else self._rows / (told + silent - begun)


@dataclass(slots=True, frozen=True)
class WorkerLoad:
    """What a worker has to do. pace: rows a second, None while unknown; rows: not finished; leases: that these are in.

    room: rows that its engine has at once.
    """

    pace: float | None
    rows: int
    leases: int
    room: int

    def wants(self, seconds: float, whole_shards: bool) -> bool:
        """Returns False where the worker has enough in any case, whatever the others have. seconds: see ``Outlook``."""
        if self.pace is None or whole_shards:
            return self.leases < FIRST_LEASES
        return self.can_take(ceil(self.pace * seconds), self.pace)

    def can_take(self, rows: int, pace: float) -> bool:
        """Returns True when a lease of so many rows keeps the batch full, and the rows wait there no longer than needed."""
        return self.rows < self.room + rows + min(rows, pace * REPORT_SECONDS)


@dataclass(frozen=True)
class Outlook:
    """What all workers have to do. waiting: rows that nobody has; loads: of all workers; seconds: how long a lease should take."""

    waiting: int
    loads: Sequence[WorkerLoad]
    seconds: float

    def size(self, load: WorkerLoad, at_once: bool = False) -> int:
        """Returns how many rows the worker with this load, one of ``loads``, is to have now; 0 for none.

        at_once: also where it has enough.
        """
        pace = self._pace_of(load)
        share = ceil(self.waiting * pace / (2 * self._pace))
        if load.pace is None:
            size = min(load.room, share) if at_once or load.leases < FIRST_LEASES else 0
        else:
            size = min(ceil(pace * self.seconds), max(self._least(load), share))
            size = size if at_once or load.can_take(size, pace) else 0
        return min(size, self._until_end(load), self.waiting)

    def has_turn(self, load: WorkerLoad, rows: int) -> bool:
        """Returns whether the worker is to have a whole shard, which has ``rows`` rows."""
        return load.leases < FIRST_LEASES and self._until_end(load, rows) > 0

    def rescue(self, slow: WorkerLoad, idle: WorkerLoad, held: float, least: int = 0) -> int:
        """Returns how many rows of a worker another one, which has none, is to do too, as it would be done with these long before.

        held: seconds since the worker got its newest rows. least: so many rows come together.
        """
        if slow.pace is None and idle.pace is None:
            return 0
        own = idle.pace or self._usual
        if slow.pace is None:
            return slow.rows if held > max(LEAST_LATE, SLOW * slow.rows / own) else 0
        rows, left = ceil(slow.rows * own / (own + slow.pace)), max(slow.rows, slow.room) / slow.pace
        return rows if left > max(LEAST_LATE, SLOW * max(rows, least, idle.room) / own) else 0

    @cached_property
    def _usual(self) -> float:
        """The pace of a worker whose own is not known. Where none is, all count alike."""
        known = [load.pace for load in self.loads if load.pace is not None]
        return sum(known) / len(known) if known else 1.0

    @cached_property
    def _pace(self) -> float:
        return sum(self._pace_of(load) for load in self.loads)

    @cached_property
    def _end(self) -> float:
        """Seconds until all could be done."""
        return (self.waiting + sum(load.rows for load in self.loads)) / self._pace

    def _pace_of(self, load: WorkerLoad) -> float:
        return self._usual if load.pace is None else load.pace

    def _least(self, load: WorkerLoad) -> int:
        return ceil(max(load.room / _ROOM_SHARE, self._pace_of(load) * self.seconds / _SECONDS_SHARE))

    def _until_end(self, load: WorkerLoad, least: int | None = None) -> int:
        """Returns how many rows the worker can do until all could be done.

        At least ``least``, for the worker that would be done with these first; 0 for another that can do less.
        """
        least = least or max(1, self._least(load) // 2)
        pace = self._pace_of(load)
        spare = int(pace * self._end) - load.rows
        done = self._done(load, least)
        if done <= min(self._done(other, least) for other in self.loads):
            return max(least, spare)
        return spare if spare >= least and done <= self._end else 0

    def _done(self, load: WorkerLoad, rows: int) -> float:
        """Returns in how many seconds the worker would be done with ``rows`` more; a row takes as long as a batch."""
        return max(load.rows + rows, load.room) / self._pace_of(load)
