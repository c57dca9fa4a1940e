"""Takes the records of leased rows and sends them to the driver as frames, a few hundred records or some seconds at a time.

It stands where a run's writer stands. Does not know the engine; ``LeaseSession`` gives it the leases.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..cluster.messages import Frame, Frames, FromWorker, LeaseDone, Unfit
from ..core.errors import UNFIT
from ..core.outcomes import Failure
from ..core.shard_layout import Layout, Place
from ..store import journal
from ..store.arrow_builder import record_batch, record_bytes
from ..store.part_file import error_record, errors_schema, record_place
from ..store.shard_ledger import WHOLE, Ledger, ledger_of
from .row_tokens import RowTokens

_FRAME_RECORDS, _FRAME_BYTES = 256, 4 << 20


@dataclass(slots=True)
class _HeldRecords:
    """What a shard's next message will hold."""

    admitted: dict[int, int] = field(default_factory=dict[int, int])  # how many records each row has in all, by position
    resolved: set[Place] = field(default_factory=set[Place])
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.resolved) >= _FRAME_RECORDS or self.bytes >= _FRAME_BYTES


@dataclass(slots=True)
class _OpenLease:
    """A lease that is not done. left: positions of its rows that are not finished; ledger: of its shard, as far as this lease goes."""

    lease: str
    left: set[int]
    ledger: Ledger


class LeaseSink:
    """Fulfils ``recorder.Sink``. tell: sends a message; it may wait. All methods may be called by any thread."""

    running, broken = True, False

    def __init__(self, run: str, schema: pa.Schema, layout: Layout, tell: Callable[[FromWorker], None]):
        self._run, self._schema, self._layout, self._tell = run, schema, layout, tell
        self._lock = threading.RLock()
        self._held: dict[int, _HeldRecords] = {}
        self._leases: dict[int, _OpenLease] = {}  # by position
        self._number = 0
        self.tokens = RowTokens()

    def expect(self, lease: str, shard: int, positions: Sequence[int], recorded: Sequence[Place]) -> None:
        """Notes the rows of a lease, before any of them is given to the engine. recorded: what the driver has of them."""
        rows = self._layout.rows_of(shard)
        with self._lock:
            opened = _OpenLease(lease, set(positions), ledger_of(rows, self._layout, recorded))
            self._leases.update(dict.fromkeys(positions, opened))
            if not positions:
                self._tell(LeaseDone(self._run, lease))

    def admit(self, position: int, samples: int) -> None:
        """Notes how many records or failures the row has in all."""
        with self._lock:
            self._of(position).admitted[position] = samples
            if (lease := self._leases.get(position)) is not None:
                lease.ledger.admit(self._layout.row_of(position), samples)
                self._settle(lease, position)

    def add(self, position: int, sample: int, record: dict[str, Any]) -> None:
        """Takes a finished record."""
        self.add_group(position, {sample: record})

    def add_group(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        """Takes all records of a row; they travel in one frame."""
        with self._lock:
            held = self._without(position, records)
            for sample, record in records.items():
                held.results.append(record | record_place(self._schema, self._layout, position, sample))
                held.resolved.add((position, sample))
                held.bytes += record_bytes(record)
            if (lease := self._leases.get(position)) is not None:
                for sample in records:
                    lease.ledger.add_result(self._layout.row_of(position), sample)
            self._after(position)

    def fail(self, failure: Failure) -> None:
        """Takes the failure of a row, or of one sample. A row without room here is not failed: the driver is told."""
        with self._lock:
            if failure.stage == UNFIT:
                self._tell(Unfit(self._run, failure.row, failure.message))
                if (lease := self._leases.get(failure.row)) is not None:
                    lease.ledger.add_error(self._layout.row_of(failure.row), None)
                    self._settle(lease, failure.row)
                return
            sample = WHOLE if failure.sample is None else failure.sample
            held = self._without(failure.row, (sample,))
            held.errors.append(error_record(self._schema, self._layout, failure))
            held.resolved.add((failure.row, sample))
            held.bytes += len(failure.input)
            if (lease := self._leases.get(failure.row)) is not None:
                lease.ledger.add_error(self._layout.row_of(failure.row), failure.sample)
            self._after(failure.row)

    def flush(self, saved: Callable[[], None]) -> None:
        """Sends all that is held, then calls ``saved``."""
        self.push()
        saved()

    def push(self, least: int = 0) -> None:
        """Sends what is held of each shard, where that is ``least`` records or failures."""
        with self._lock:
            for shard in [shard for shard, held in self._held.items() if len(held.resolved) >= least]:
                self._send(shard)

    def forget(self, lease: str) -> None:
        """Forgets a lease that is not done; rows of it that are finished are sent all the same."""
        with self._lock:
            self._leases = {position: opened for position, opened in self._leases.items() if opened.lease != lease}

    def _of(self, position: int) -> _HeldRecords:
        return self._held.setdefault(self._layout.shard_of(position), _HeldRecords())

    def _without(self, position: int, samples: Iterable[int]) -> _HeldRecords:
        """Returns what is held of the row's shard, without these samples: where the row is done again, what was held leaves first."""
        held = self._of(position)
        if any((position, sample) in held.resolved for sample in samples):
            self._send(self._layout.shard_of(position))
            again = self._of(position)
            if (admitted := held.admitted.get(position)) is not None:  # the driver may refuse the first message
                again.admitted[position] = admitted
            return again
        return held

    def _after(self, position: int) -> None:
        shard = self._layout.shard_of(position)
        if self._held[shard].full:
            self._send(shard)
        if (lease := self._leases.get(position)) is not None:
            self._settle(lease, position)

    def _settle(self, lease: _OpenLease, position: int) -> None:
        """Notes a row that is finished; after the lease's last one, sends the records and says that it is done."""
        if not lease.ledger.is_resolved(self._layout.row_of(position)):
            return
        lease.left.discard(position)
        self._leases.pop(position, None)
        if not lease.left:
            self._send(self._layout.shard_of(position))
            self._tell(LeaseDone(self._run, lease.lease))

    def _send(self, shard: int) -> None:
        held = self._held.pop(shard, None)
        if held is None:
            return
        frames: list[Frame] = []
        for kind, schema, records in (
            (journal.RESULTS, self._schema, held.results),
            (journal.ERRORS, errors_schema(self._schema), held.errors),
        ):
            if records:
                payload, checksum = journal.frame_content(kind, record_batch(schema, records))
                frames.append(Frame(kind.decode(), payload, checksum))
        self._number += 1
        tokens = self.tokens.take({position for position, _ in held.resolved})
        admitted, resolved = tuple(held.admitted.items()), tuple(sorted(held.resolved))
        self._tell(Frames(self._run, self._number, shard, admitted, resolved, tuple(frames), tokens))
