"""Decides which rows go to which worker: the next rows of the input, rows that were lost, or rows that a slow worker holds.

    rows of the input ─┐
    rows given back ───┼─► leases, as many rows as a worker does in ``lease_seconds``; all of one shard
    rows of a slow one ┘

Callers pass the time in, and what is recorded of rows that come back. Sends nothing, and knows no records.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout
from ..pipeline.row_requests import RecordedRows
from ..store.shard_ledger import WHOLE, RecordedRow
from .messages import Place

IN_FLIGHT = 2  # leases of a worker: while one ends, the next fills the batch
FIRST_ROWS = 64  # of a worker whose pace is not known
LOSSES_TOGETHER = 2  # rows whose workers have gone so often are taken apart
LOSSES_ALONE = 2  # a row that runs alone is given up after so many more
LEAST_LATE = 2.0  # seconds; a copy of what is done sooner costs more than it brings
SLOW = 1.5  # a lease is late after so many times the time that its rows should take
_WEIGHT = 0.5  # of the newest measurement of a worker's pace


@dataclass(slots=True)
class RowSet:
    """Rows of one shard that wait for a worker. losses: how many workers have gone while they worked on them."""

    shard: int
    rows: list[Row | BadRow]
    recorded: tuple[Place, ...] = ()
    losses: int = 0
    alone: bool = False

    @property
    def positions(self) -> list[int]:
        """The rows' positions."""
        return [row.position for row in self.rows]


@dataclass(slots=True)
class OpenLease:
    """Rows that a worker has. sent: when (seconds of any clock); begun: its engine has taken them; copied: another has them, too."""

    name: str
    worker: str
    given: RowSet
    sent: float
    begun: bool = False
    copied: bool = False


@dataclass(slots=True)
class _Pace:
    """How fast a worker goes. since: when its last lease was done, or its first one sent."""

    since: float
    rows_a_second: float | None = None

    def add(self, rows: int, now: float) -> None:
        measured = rows / max(now - self.since, 1e-3)
        before = self.rows_a_second
        self.rows_a_second = measured if before is None else _WEIGHT * measured + (1 - _WEIGHT) * before
        self.since = now


@dataclass(slots=True)
class _Input:
    """The rows of the input that were given to nobody yet, without those that need no work."""

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


class Leaser:
    """Gives rows to workers. rows: all that are not committed, in order. recorded: what earlier sessions have of them.

    whole_shards: a lease is a shard (deterministic mode, or a policy that may change). left: how many rows are not done.
    session: begins the names of this start's leases.
    """

    def __init__(
        self,
        rows: Iterator[Row | BadRow],
        layout: Layout,
        recorded: RecordedRows,
        *,
        session: str,
        left: int,
        lease_seconds: float,
        whole_shards: bool,
        speculate: bool,
    ):
        self.leases: dict[str, OpenLease] = {}
        self._layout, self._recorded, self._whole_shards = layout, recorded, whole_shards
        self._input = _Input(rows if whole_shards else (row for row in rows if not self._needs_nothing(row.position)))
        self._waiting: deque[RowSet] = deque()
        self._session, self._number = session, 0
        self._left, self._lease_seconds, self._speculate = left, lease_seconds, speculate
        self._paces: dict[str, _Pace] = {}
        self._elsewhere: dict[int, str] = {}  # rows that a worker has since before this start, by position: its lease

    @property
    def exhausted(self) -> bool:
        """True when no rows wait for a worker."""
        return self._input.next is None and not self._waiting

    def of(self, worker: str) -> list[OpenLease]:
        """Returns the worker's leases, the oldest first."""
        return [lease for lease in self.leases.values() if lease.worker == worker]

    def pace(self, worker: str) -> float | None:
        """Returns the rows a second that the worker does; None before its first lease is done."""
        return self._paces[worker].rows_a_second if worker in self._paces else None

    def give(self, worker: str, workers: int, now: float) -> OpenLease | None:
        """Returns a new lease for a worker, of which there are ``workers``; None where it has enough, or nothing waits."""
        if len(self.of(worker)) >= IN_FLIGHT:
            return None
        rows = self._next_rows(worker, workers)
        return None if rows is None else self._open(worker, rows, now)

    def late(self, idle: str, now: float) -> OpenLease | None:
        """Returns the lease of another worker that ``idle``, which has nothing to do, is to have, too; None where all are in time."""
        if not self._speculate or not self.exhausted or self.of(idle):
            return None
        late = [each for each in self.leases.values() if not each.copied and each.worker != idle and self._is_late(each, idle, now)]
        return min(late, key=lambda each: each.sent, default=None)

    def copy(self, lease: OpenLease, idle: str, rows: RowSet, now: float) -> OpenLease:
        """Opens a second lease for ``idle`` of what is left of ``lease``, which is ``rows``."""
        lease.copied = True
        second = self._open(idle, rows, now)
        second.copied = True
        return second

    def keep(self, name: str) -> None:
        """Notes that a late lease has no copy after all."""
        if name in self.leases:
            self.leases[name].copied = False

    def begin(self, name: str) -> None:
        """Notes that the engine of a worker has taken a lease."""
        if name in self.leases:
            self.leases[name].begun = True

    def end(self, name: str, now: float) -> RowSet | None:
        """Forgets a lease that is done, and returns its rows; None for one that is not known."""
        lease = self.leases.pop(name, None)
        if lease is None:
            return None
        pace = self._paces.setdefault(lease.worker, _Pace(lease.sent))
        if lease.given.rows:
            pace.add(len(lease.given.rows), now)
        return lease.given

    def lose(self, worker: str) -> list[RowSet]:
        """Forgets the leases of a worker that has gone, and returns their rows, without those that another worker has, too."""
        lost: list[RowSet] = []
        for lease in self.of(worker):
            del self.leases[lease.name]
            lease.given.losses += lease.begun
            mine = set(lease.given.positions)
            other = next((each for each in self.leases.values() if lease.copied and mine & set(each.given.positions)), None)
            if other is None:
                lost.append(lease.given)
            else:
                other.copied = False
        self._elsewhere = {position: name for position, name in self._elsewhere.items() if name in self.leases}
        return lost

    def give_back(self, rows: RowSet, states: Sequence[RecordedRow]) -> list[RowSet]:
        """Lets rows wait for a worker again, as far as they are not resolved. states: what is recorded of each.

        Rows that several workers have died with are taken apart, and then run alone. Returns those to be given up: a row each.
        """
        resolved = {state.position for state in states if state.resolved}
        if len(resolved) == len(states):
            return []
        left = self._without_elsewhere(rows.rows if self._whole_shards else [row for row in rows.rows if row.position not in resolved])
        if not left:
            return []
        places = {row.position for row in left}
        recorded = tuple((state.position, sample) for state in states if state.position in places for sample in state.samples)
        again = RowSet(rows.shard, left, recorded, rows.losses, rows.alone)
        if again.losses < LOSSES_TOGETHER or self._whole_shards:
            if self._whole_shards and again.losses >= LOSSES_TOGETHER + LOSSES_ALONE:
                return [again]
            self._waiting.appendleft(again)
            return []
        if len(left) == 1:
            if again.alone and again.losses >= LOSSES_TOGETHER + LOSSES_ALONE:
                return [again]
            self._waiting.appendleft(RowSet(again.shard, left, recorded, again.losses, alone=True))
            return []
        half = len(left) // 2
        for part in (left[half:], left[:half]):
            places = {row.position for row in part}
            kept = tuple(place for place in recorded if place[0] in places)
            self._waiting.appendleft(RowSet(again.shard, part, kept, LOSSES_TOGETHER, alone=True))
        return []

    def adopt(self, worker: str, leases: dict[str, list[int]], now: float) -> None:
        """Notes the leases that a worker has since before this start, or since before it was away.

        Their rows are given to nobody else while it has them, as far as nobody has them yet.
        """
        if worker in self._paces:
            self._paces[worker].since = now
        for name, positions in leases.items():
            if positions and name not in self.leases:
                shard = self._layout.shard_of(positions[0])
                self.leases[name] = OpenLease(name, worker, RowSet(shard, []), now, begun=True)
                self._elsewhere.update(dict.fromkeys(positions, name))
        for rows in self._waiting:
            rows.rows = self._without_elsewhere(rows.rows)
            places = {row.position for row in rows.rows}
            rows.recorded = tuple(place for place in rows.recorded if place[0] in places)
        self._waiting = deque(rows for rows in self._waiting if rows.rows)

    def _needs_nothing(self, position: int) -> bool:
        return self._recorded.failed(position) or self._recorded.resolved(position)

    def _next_rows(self, worker: str, workers: int) -> RowSet | None:
        if self._waiting:
            return self._waiting.popleft()
        while taken := self._input.take(self._layout, None if self._whole_shards else self._size(worker, workers)):
            self._left -= len(taken)
            rows = self._without_elsewhere(taken)
            if rows:
                places = tuple((row.position, sample) for row in rows for sample in self._samples(row.position))
                return RowSet(self._layout.shard_of(rows[0].position), rows, places)
        return None

    def _samples(self, position: int) -> list[int]:
        whole = [WHOLE] if self._recorded.failed(position) else []
        return whole + sorted(self._recorded.samples(position))

    def _without_elsewhere(self, rows: list[Row | BadRow]) -> list[Row | BadRow]:
        """Leaves out the rows that an adopted lease has; they are kept with it. A whole shard is not divided."""
        names = [self._elsewhere.pop(row.position, None) for row in rows] if self._elsewhere else []
        if self._whole_shards and (held := [name for name in names if name in self.leases]):
            names = [held[0]] * len(rows)
        for row, name in zip(rows, names, strict=False):
            if name in self.leases:
                assert name is not None
                self.leases[name].given.rows.append(row)
        return [row for row, name in zip_longest(rows, names) if name not in self.leases]

    def _size(self, worker: str, workers: int) -> int:
        """Returns how many rows a worker gets: for ``lease_seconds``, and less towards the end, so that all end together."""
        pace = self.pace(worker)
        wanted = FIRST_ROWS if pace is None else round(pace * self._lease_seconds)
        return max(1, min(wanted, -(-max(1, self._left) // (2 * workers))))

    def _is_late(self, lease: OpenLease, idle: str, now: float) -> bool:
        """Returns True when the lease takes longer than it should, or ``idle`` would be done with all of it long before its worker."""
        pace, idle_pace, rows, passed = self.pace(lease.worker), self.pace(idle), len(lease.given.rows), now - lease.sent
        if passed < LEAST_LATE:
            return False
        if pace is None:
            return idle_pace is not None and passed > SLOW * rows / idle_pace
        expected = IN_FLIGHT * rows / pace
        return passed > SLOW * expected or (idle_pace is not None and expected - passed > SLOW * rows / idle_pace)

    def _open(self, worker: str, rows: RowSet, now: float) -> OpenLease:
        self._number += 1
        lease = OpenLease(f"{self._session}-{self._number}", worker, rows, now)
        self.leases[lease.name] = lease
        pace = self._paces.setdefault(worker, _Pace(now))
        if not [each for each in self.of(worker) if each is not lease]:
            pace.since = now  # it had nothing to do until now
        return lease
