"""Decides which rows go to which worker: the next rows of the input, rows that were lost, or rows that a slow worker holds.

    rows of the input ─┐
    rows given back ───┼─► leases, all rows of one in one shard; ``lease_sizes.py`` says how many
    rows of a slow one ┘

Callers pass the time in, and what is recorded of rows that come back. Sends nothing, and knows no records.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout, Place
from ..pipeline.row_requests import RecordedRows
from ..store.shard_ledger import RecordedRow
from .begun_rows import BegunRows
from .input_rows import InputRows
from .late_rows import late_rows
from .lease_log import LOST, REFUSED, RESTART, SLOW
from .lease_sizes import Outlook, WorkerLoad, WorkerPace
from .open_lease import OpenLease
from .row_set import RowSet, clear_returned, weigh_loss
from .rows_elsewhere import RowsElsewhere
from .waiting_rows import WaitingRows

FIRST_ROOM = 64  # rows that an engine may have at once which has not told it
RETURN_SECONDS = 1.0  # in which a worker comes back whose connection alone was lost


class Leaser:
    """Gives rows to workers. rows: all that are not committed, in order. recorded: what earlier sessions have of them.

    whole_shards: a lease is a shard (deterministic mode). left: how many rows are not done.
    session: begins the names of this start's leases. suits: says whether rows that have come back may go to a worker. finished: called
    with a lease, and with the positions of rows that its worker has just finished.
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
        suits: Callable[[str, RowSet], bool] = lambda worker, rows: True,
        finished: Callable[[OpenLease, Set[int], float], None] = lambda lease, positions, now: None,
    ):
        self.leases: dict[str, OpenLease] = {}
        self._layout, self._whole_shards = layout, whole_shards
        self._input = InputRows(rows, layout, recorded, whole_shards)
        self._waiting = WaitingRows(suits, whole_shards)
        self._lost: list[RowSet] = []  # rows of workers that have gone, until they are given back
        self._session, self._number = session, 0
        self._left, self._lease_seconds, self._speculate, self._finished = left, lease_seconds, speculate, finished
        self._held: dict[str, dict[str, OpenLease]] = {}  # by worker and name
        self._paces = defaultdict[str, WorkerPace](lambda: WorkerPace(lease_seconds, FIRST_ROOM))
        self._begun = BegunRows(whole_shards)
        self._elsewhere = RowsElsewhere(self.leases, whole_shards)

    @property
    def exhausted(self) -> bool:
        """True when no rows wait for a worker."""
        return self._input.next is None and not self._waiting.count

    def of(self, worker: str) -> list[OpenLease]:
        """Returns the worker's leases, the oldest first."""
        return list(self._held.get(worker, {}).values())

    def pace(self, worker: str, now: float) -> float | None:
        """Returns the rows a second that the worker does; None before its first rows are finished."""
        return self._paces[worker].rows_a_second(now) if worker in self._paces else None

    def equip(self, worker: str, room: int) -> None:
        """Notes how many rows the worker's engine has at once."""
        self._paces[worker].room = room

    def deal(self, workers: Sequence[str], now: float) -> list[OpenLease]:
        """Returns new leases for workers that have too few; ``workers`` are all that can be given rows. Each gets one in turn."""
        dealt, wanting = list[OpenLease](), workers
        loads = {worker: self._load(worker, now) for worker in workers} if not self.exhausted else {}
        while wanting and not self.exhausted:
            given = [lease for worker in wanting if (lease := self._give(worker, loads, now)) is not None]
            dealt += given
            wanting = [lease.worker for lease in given]
        return dealt

    def give(self, worker: str, workers: Sequence[str], now: float) -> OpenLease | None:
        """Returns a new lease for one of ``workers``, which are all that can be given rows; None where it has enough, or nothing waits."""
        return self._give(worker, {each: self._load(each, now) for each in workers}, now)

    def _give(self, worker: str, loads: dict[str, WorkerLoad], now: float) -> OpenLease | None:
        """As ``give``. loads: of all workers that can be given rows; the worker's is brought up to date."""
        load, first = loads[worker], self._waiting.first(worker, now)
        at_once = first is not None and not self._whole_shards  # rows that have come back wait no longer than they must
        if self.exhausted or not (at_once or load.wants(self._lease_seconds, self._whole_shards)):
            return None
        no_new = self._input.next is None or self._waiting.many_held_up
        if first is None and no_new and (first := self._waiting.first(worker, None)) is None:
            return None
        rivals = loads if first is None else self._waiting.rivals(first, loads)  # others do not count: they cannot have these rows
        waiting = max(1, self._left + self._waiting.count)
        outlook = Outlook(waiting, [loads[each] for each in rivals], self._lease_seconds)
        if self._whole_shards:
            size = self._layout.rows_per_shard if outlook.has_turn(load, min(waiting, self._layout.rows_per_shard)) else 0
        else:
            size = outlook.size(load, at_once)
        if not size or (rows := self._next_rows(first, size)) is None:
            return None
        lease = self._open(worker, rows, now)
        loads[worker] = self._load(worker, now)
        return lease

    def late(self, idle: str, workers: Sequence[str], now: float) -> tuple[OpenLease, RowSet] | None:
        """Returns rows that ``idle``, which has nothing to do, is to have, too, and the lease of another worker that they are in.

        None where all are in time. The rows count as copied from now on, see ``keep``.
        """
        if not self._speculate or not self.exhausted or self.of(idle):
            return None
        outlook = Outlook(0, [self._load(each, now) for each in workers], self._lease_seconds)
        others = {worker: leases for worker, leases in self._held.items() if worker != idle}
        found = late_rows(others, lambda slow: self._load(slow, now, copied=False), outlook, self._load(idle, now), now, self._whole_shards)
        if found is None:
            return None
        lease, rows = found
        lease.copied.update(row.position for row in rows)
        return lease, lease.given.part(rows)

    def copy(self, rows: RowSet, idle: str, now: float) -> OpenLease:
        """Opens a second lease, for ``idle``, of what is left of rows that are late."""
        second = self._open(idle, rows, now)
        second.copied.update(rows.positions)
        second.again, second.cause = len(rows.rows), SLOW  # at most: the slow one may not get to them before the end
        return second

    def keep(self, name: str, rows: RowSet) -> None:
        """Notes that rows of a late lease have no copy after all."""
        if name in self.leases:
            self.leases[name].copied.difference_update(rows.positions)

    def begin(self, name: str) -> None:
        """Notes that the engine of a worker has taken a lease."""
        if name in self.leases:
            self.leases[name].begun = True

    def begun(self, worker: str, now: float) -> list[int]:
        """Returns the positions of rows that the worker has begun and not finished, as far as the driver knows; they may be fewer."""
        return self._begun.under_way(self.of(worker), self._paces[worker], now)

    def note(self, worker: str, admitted: Collection[Place], resolved: Collection[Place], now: float) -> None:
        """Notes what a worker has sent: how many records each row has in all, and records that are there."""
        self._input.note(admitted, resolved)
        finished = [(lease, positions) for lease in self.of(worker) if (positions := lease.note(admitted, resolved))]
        for lease, positions in finished:
            self._finished(lease, positions, now)
        if finished:
            self._paces[worker].add(sum(len(positions) for _, positions in finished), now)
        for lease in self.leases.values() if self.exhausted else ():
            if lease.copied and lease.worker != worker:
                lease.note(admitted, resolved)

    def redo(self, refused: Iterable[Place]) -> None:
        """Notes records that are not taken: their rows are begun again."""
        self._begun.lose((position for position, _ in refused), REFUSED)

    def come(self) -> list[RowSet]:
        """Takes away rows of the input of which records came before they were read. What is left of them is to be given back."""
        come = self._input.come()
        if self._whole_shards:
            self._begun.lose((position for rows in come for position in rows.positions), RESTART)
        return come

    def end(self, name: str, now: float) -> RowSet | None:
        """Forgets a lease that is done, and returns its rows; None for one that is not known."""
        if (lease := self.leases.get(name)) is None:
            return None
        if left := lease.left.keys() & set(lease.given.positions):
            self._paces[lease.worker].add(len(left), now)
        self._close(lease, now)
        return lease.given

    def lose(self, worker: str, now: float, label: str | None = None) -> list[RowSet]:
        """Forgets the leases of a worker that has gone, and returns their rows, without those that another worker has, too.

        label: what a worker that is started again in its place is called, too.
        """
        leases = self.of(worker)
        self._begun.lose(self.begun(worker, now), LOST)
        for lease in leases:
            lease.given.died += (label or worker,) * lease.begun
            lease.given.kept_until = now + RETURN_SECONDS
        lost = self.take_back(leases, now)
        self._lost += lost
        return lost

    def take_back(self, leases: list[OpenLease], now: float) -> list[RowSet]:
        """Forgets leases whose worker does not do them; else as ``lose``. Nobody died of the rows."""
        lost: list[RowSet] = []
        for lease in leases:
            self._close(lease, now)
            kept: set[int] = set()
            for other in self.leases.values() if lease.copied else ():
                if also := other.left.keys() & lease.copied & other.copied:
                    other.copied -= also
                    kept |= also
            if rows := [row for row in lease.given.rows if row.position not in kept]:
                lost.append(lease.given.part(rows))
        self._elsewhere.forget_ended()
        return lost

    def give_back(self, rows: RowSet, states: Sequence[RecordedRow]) -> list[RowSet]:
        """Lets rows wait for a worker again, as far as they are not resolved. states: what is recorded of each.

        Rows that several workers have died with are taken apart, and then run alone. Returns those to be given up: a row each.
        """
        if self._whole_shards and any(each is rows for each in self._lost):
            weigh_loss(rows, states, self._all)
        self._lost = [each for each in self._lost if each is not rows]
        resolved = {state.position for state in states if state.resolved}
        if resolved.issuperset(rows.positions):
            return []
        left = self._elsewhere.without(rows.rows if self._whole_shards else [row for row in rows.rows if row.position not in resolved])
        if not left:
            return []
        places = {row.position for row in left}
        recorded = tuple((state.position, sample) for state in states if state.position in places for sample in state.samples)
        again = replace(rows, rows=left, recorded=recorded)
        given_up = self._waiting.put(again)
        return [] if given_up is None else [given_up]

    def too_large(self, longest: int) -> list[RowSet]:
        """Takes away the waiting rows for which no worker has room; ``longest``: tokens of the longest row that any has room for."""
        return self._waiting.drop(longest)

    def stuck(self, has_room: Callable[[RowSet], bool]) -> RowSet | None:
        """Returns rows that no worker has room for, as ``has_room`` says, once nothing else goes on: no lease is open."""
        return None if self.leases else next((rows for rows in self._waiting if not has_room(rows)), None)

    def adopt(self, worker: str, leases: dict[str, list[int]], now: float, label: str | None = None) -> int:
        """Notes the leases that a worker has since before this start, or since before it was away.

        Their rows are given to nobody else while it has them, as far as nobody has them yet. Returns how many of them this start has
        given to others before it knew.
        """
        clear_returned(label or worker, self._all)
        others = set[int]().union(*(lease.left for lease in self.leases.values() if not (self._whole_shards and lease.again)))
        twice = 0
        for name, positions in leases.items():
            if positions and name not in self.leases:
                twice += 0 if name.startswith(f"{self._session}-") else len(others.intersection(positions))
                shard = self._layout.shard_of(positions[0])
                self._hold(OpenLease(name, worker, RowSet(shard, []), now, True, told=positions, left=dict.fromkeys(positions)), now)
                self._elsewhere.add(name, positions)
                self._begun.find(positions)
        self._waiting.thin_out(self._elsewhere.without)
        return twice

    @property
    def _all(self) -> list[RowSet]:
        """All rows that were given to workers and may be given again."""
        return [*self._waiting, *self._lost, *(lease.given for lease in self.leases.values())]

    def _next_rows(self, first: RowSet | None, most: int) -> RowSet | None:
        """Takes up to ``most`` rows of a set that waits, or of the input."""
        if first is not None:
            return self._waiting.take(first, most)
        while taken := self._input.take(most):
            self._left -= len(taken)
            if (rows := self._input.without_early(self._elsewhere.without(taken))) is not None:
                self._begun.lose(rows.positions if self._whole_shards and rows.recorded else (), RESTART)
                return rows
        return None

    def _load(self, worker: str, now: float, copied: bool = True) -> WorkerLoad:
        """Returns what a worker has to do. copied: also those rows that another one has."""
        leases, pace = self.of(worker), self._paces[worker]
        rows = sum(len(lease.left) if copied else len(lease.left.keys() - lease.copied) for lease in leases)
        return WorkerLoad(pace.rows_a_second(now), rows, len(leases), pace.room)

    def _open(self, worker: str, rows: RowSet, now: float) -> OpenLease:
        self._number += 1
        lease = OpenLease(f"{self._session}-{self._number}", worker, rows, now, left=dict.fromkeys(rows.positions))
        lease.again, lease.cause = self._begun.begin_again(lease.left)
        self._hold(lease, now)
        return lease

    def _hold(self, lease: OpenLease, now: float) -> None:
        self.leases[lease.name] = self._held.setdefault(lease.worker, {})[lease.name] = lease
        self._paces[lease.worker].begin(now)

    def _close(self, lease: OpenLease, now: float) -> None:
        del self.leases[lease.name], self._held[lease.worker][lease.name]
        if not self._held[lease.worker]:
            self._paces[lease.worker].pause(now)
