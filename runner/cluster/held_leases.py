"""The memory of a worker's agent: the leases that it has, which of their rows are finished, and the frames that no driver has acked.

It outlives connections to the driver and deaths of the engine. Sends nothing itself, and has no threads: it returns the messages that
are to be sent, in order. One run at a time.

    driver's lease   7: a b c d e f            the engine died with c d e f in the model; a is finished
    to the engine    7~1: c d   7~2: e f   7~3: b      the first two alone, then the rest
"""

import pickle
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.host_process import Orders
from .messages import Ack, Begun, Frames, FromWorker, Lease, LeaseDone, NoRoom

if TYPE_CHECKING:  # NumPy comes with it, which a worker without leases does not load
    from ..core.requests import BadRow, Row

FULL_BYTES = 64 << 20  # of frames that are not acked: the agent takes no more from its engine

Rows = dict[int, "Row | BadRow"]  # by position, in order
_WHOLE = -1  # WHOLE of ``shard_ledger``


@dataclass(slots=True)
class _HeldLease:
    """A lease of the driver. pieces: the leases that the engine has been given for it and has not finished, with their positions."""

    lease: Lease
    rows: Rows
    recorded: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    needed: dict[int, int] = field(default_factory=dict[int, int])
    pieces: dict[str, Collection[int]] = field(default_factory=dict[str, Collection[int]])
    ended: set[int] = field(default_factory=set[int])  # rows of pieces that the engine has called done
    behind: set[str] = field(default_factory=set[str])  # other leases that have some of the rows, which the engine does for these
    begun: bool = False
    done: bool = False

    def note(self, frames: Frames) -> None:
        """Notes what ``frames`` tell of rows of this lease."""
        for position, samples in frames.admitted:
            if position in self.rows:
                self.needed[position] = samples
        for position, sample in frames.resolved:
            if position in self.rows:
                self.recorded.setdefault(position, set()).add(sample)

    @property
    def unfinished(self) -> list[int]:
        """The positions of rows that have records to come."""
        return [] if self.done else [position for position in self.rows if not self._is_finished(position)]

    def _is_finished(self, position: int) -> bool:
        recorded, needed = self.recorded.get(position, ()), self.needed.get(position)
        if position in self.ended or _WHOLE in recorded:
            return True
        return needed is not None and sum(sample < needed for sample in recorded) == needed

    def piece(self, name: str, positions: Collection[int], alone: bool) -> Lease:
        """Returns a lease of some of the rows, and notes it as given to the engine."""
        self.pieces[name] = frozenset(positions)
        whole = len(positions) == len(self.rows)
        rows = self.lease.rows if whole else pickle.dumps([self.rows[position] for position in positions], pickle.HIGHEST_PROTOCOL)
        recorded = tuple((position, sample) for position in positions for sample in sorted(self.recorded.get(position, ())))
        return replace(self.lease, lease=name, rows=rows, recorded=recorded, alone=alone)


class HeldLeases:
    """The leases and frames of the run that the worker is at. full_bytes: of unacked frames, from which on it is ``full``."""

    def __init__(self, full_bytes: int = FULL_BYTES):
        self.run: str | None = None
        self._full_bytes = full_bytes
        self._unacked_bytes = 0
        self._number = self._names = 0
        self._leases: dict[str, _HeldLease] = {}
        self._outbox: deque[Frames | LeaseDone] = deque()

    @property
    def full(self) -> bool:
        """True while so much is unacked that no more frames should be taken in."""
        return self._unacked_bytes > self._full_bytes

    @property
    def unfinished(self) -> dict[str, list[int]]:
        """The positions of each lease whose records the driver may not have: those to be done, and those in unacked frames."""
        sent = {position for message in self._outbox if isinstance(message, Frames) for position, _ in message.resolved}
        return {
            name: sorted({*held.unfinished, *(position for position in held.rows if position in sent)})
            for name, held in self._leases.items()
        }

    @property
    def admissions(self) -> list[Frames]:
        """What a driver that was started again has to know of rows whose records an earlier one has: how many each has in all.

        Without it their shard is not complete. These messages hold no records, and are not acked.
        """
        sent = {position for message in self._outbox if isinstance(message, Frames) for position, _ in message.admitted}
        told: dict[int, dict[int, int]] = {}
        for held in self._leases.values():
            needed = {position: samples for position, samples in held.needed.items() if position not in sent}
            told.setdefault(held.lease.shard, {}).update(needed)
        return [Frames(self.run or "", 0, shard, tuple(needed.items()), (), ()) for shard, needed in told.items() if needed]

    @property
    def outbox(self) -> tuple[Frames | LeaseDone, ...]:
        """What has to be sent again on a new connection, before anything else."""
        return tuple(self._outbox)

    @property
    def unacked(self) -> bool:
        """True while the driver has not acked all frames."""
        return any(isinstance(message, Frames) for message in self._outbox)

    def begin(self, run: str) -> None:
        """Begins a run, or goes on with it. All of another run is forgotten: no driver waits for it."""
        if run != self.run:
            self._leases.clear()
            self._outbox.clear()
            self.run, self._number, self._unacked_bytes = run, 0, 0

    def stop(self) -> None:
        """Forgets the leases, as the driver has ended the run. Frames stay until they are acked."""
        self._leases.clear()

    def drop_policy(self, policy: str) -> None:
        """Forgets the leases of a policy that the engine cannot load: none of their rows was begun."""
        self._leases = {name: held for name, held in self._leases.items() if held.lease.policy != policy}

    def give_up(self, message: NoRoom) -> list[NoRoom]:
        """Forgets a lease that the engine has no room for, and those whose rows it did with it. Returns what the driver is to be told."""
        names = [name for name, held in self._leases.items() if message.lease in held.pieces]
        for name in names:  # grows meanwhile
            names += [other for other, held in self._leases.items() if name in held.behind and other not in names]
        for name in names:
            del self._leases[name]
        return [replace(message, lease=name) for name in names]

    def take(self, lease: Lease) -> Lease | None:
        """Takes a lease of the driver. Returns what the engine is to be given for it.

        That is None where the lease is for another run, or is held already, or the engine does its rows for other leases. A driver
        that took this worker for gone gives it rows that it has. Under another policy they are to be done anew.
        """
        if lease.run != self.run or lease.lease in self._leases:
            return None
        rows: Rows = {row.position: row for row in pickle.loads(lease.rows)}
        alike = [other for other in self._leases.values() if not other.done and other.lease.policy == lease.policy]
        others = [other for other in alike if other.rows.keys() & rows.keys()]
        held = self._leases[lease.lease] = _HeldLease(lease, rows, behind={other.lease.lease for other in others})
        for position, sample in lease.recorded:
            held.recorded.setdefault(position, set()).add(sample)
        own = [position for position in rows if not any(position in other.rows for other in others)]
        if not own and others:
            return None
        return held.piece(self._name(held, own), own, lease.alone) if others else held.piece(lease.lease, rows.keys(), lease.alone)

    def relay(self, message: Begun | Frames | LeaseDone) -> list[FromWorker]:
        """Takes a message of the engine in. Returns what the driver is to be told: in its terms, each lease begun and done once."""
        if message.run != self.run:
            return []
        if isinstance(message, Frames):
            return [self._add(message)]
        held = next((held for held in self._leases.values() if message.lease in held.pieces), None)
        if held is None:
            return []
        if isinstance(message, Begun):
            told, held.begun = held.begun, True
            return [] if told else [replace(message, lease=held.lease.lease)]
        held.ended.update(held.pieces.pop(message.lease))
        return [] if held.pieces or held.behind else list(self._end(held))

    def acknowledge(self, ack: Ack) -> None:
        """Forgets the frames up to the acked one, and the leases that were done before them."""
        if ack.run != self.run:
            return
        while any(isinstance(message, Frames) and message.number <= ack.number for message in self._outbox):
            message = self._outbox.popleft()
            if isinstance(message, Frames):
                self._unacked_bytes -= _size(message)
            else:
                self._leases.pop(message.lease, None)

    def give_again(self, orders: Orders, frozen: bool) -> tuple[list[Lease], list[LeaseDone]]:
        """Returns the leases for a new engine process after a death, and the driver's leases that were done before it.

        First come rows that ``orders`` name, each group alone. frozen: leases are not divided, and all their rows are run again,
        so that batches are as they were (deterministic mode).
        """
        done = [done for held in self._leases.values() if not held.done and not held.unfinished for done in self._end(held)]
        left = {held.lease.lease: self._own(held) for held in self._leases.values() if not held.done}
        for held in self._leases.values():
            held.pieces.clear()
        if frozen:
            left = {name: positions for name, positions in left.items() if positions}
            return [self._leases[name].piece(name, list(self._leases[name].rows), self._leases[name].lease.alone) for name in left], done
        again = [piece for group in orders.first_groups for piece in self._apart(group, left)]
        for name, positions in left.items():
            if positions:
                held = self._leases[name]
                again.append(held.piece(self._name(held, positions), positions, held.lease.alone))
        return again, done

    def _own(self, held: _HeldLease) -> list[int]:
        """Returns the unfinished rows of a lease that no other one has."""
        others = [self._leases[name].rows for name in held.behind]
        return [position for position in held.unfinished if not any(position in rows for rows in others)]

    def _apart(self, group: Collection[int], left: dict[str, list[int]]) -> Iterator[Lease]:
        """Yields a lease for the rows of a group that are unfinished, one for each lease that has some, and takes them from ``left``."""
        for name in left:
            if mine := [position for position in left[name] if position in group]:
                left[name] = [position for position in left[name] if position not in group]
                held = self._leases[name]
                yield held.piece(self._name(held), mine, True)

    def _name(self, held: _HeldLease, positions: Iterable[int] | None = None) -> str:
        """Returns a new name for a piece; the lease's own where it has all the rows."""
        if positions is not None and list(positions) == list(held.rows):
            return held.lease.lease
        self._names += 1
        return f"{held.lease.lease}~{self._names}"

    def _add(self, frames: Frames) -> Frames:
        """Numbers the frames, as engine processes each begin at 1, and keeps them."""
        self._number += 1
        numbered = replace(frames, number=self._number)
        self._unacked_bytes += _size(frames)
        self._outbox.append(numbered)
        for held in self._leases.values():
            held.note(frames)
        return numbered

    def _end(self, held: _HeldLease) -> Iterator[LeaseDone]:
        """Ends a lease, and those that have only waited for it; yields what the driver is told."""
        held.done = True
        done = LeaseDone(held.lease.run, held.lease.lease)
        self._outbox.append(done)
        yield done
        for other in self._leases.values():
            if held.lease.lease in other.behind:
                other.behind.discard(held.lease.lease)
                other.ended.update(held.rows)
                if not other.done and not other.behind and not other.pieces:
                    yield from self._end(other)


def _size(frames: Frames) -> int:
    return sum(len(frame.payload) for frame in frames.frames)
