"""One session of a run over a cluster: rows go out in leases, frames come back and are written. No model runs in this process.

    rows ─► Leaser ─► workers ─► frames ─► FrameIntake ─► Writer

One thread does all of it but the writing. Does not know how messages travel; ``Fleet`` does.
"""

import logging
import pickle
import secrets
from dataclasses import replace
from functools import partial
from time import monotonic

from ...configs.cluster import ClusterConfig
from ..core.progress import Progress
from ..leasing.lease_log import ENGINE, LeaseLog
from ..leasing.leaser import Leaser
from ..leasing.open_lease import OpenLease
from ..leasing.row_set import RowSet
from ..leasing.worker_table import WorkerTable
from ..parcels.file_desk import FileDesk
from ..parcels.file_messages import PictureTaken, PictureWanted, PieceWanted
from ..pipeline.model_work import OpenRun
from ..pipeline.progress_display import Watch
from ..pipeline.row_requests import RecordedRows
from ..store.shard_ledger import RecordedRow
from .description import RunDescription
from .frame_intake import FrameIntake, Tokens
from .interface import Fleet, Joined, Left, Told
from .lease_policies import LeasePolicies, OtherPolicy
from .membership import NO_WORKERS, ROWS_TO_COME, Membership
from .messages import (
    Ack,
    Begun,
    EngineDied,
    Figures,
    Frames,
    Lease,
    LeaseDone,
    NoRoom,
    PolicyLoaded,
    PolicyRefused,
    Ready,
    RunFailed,
    RunRefused,
    RunStopped,
    StopRun,
    Unfit,
    one_a_line,
)
from .quarantine import Quarantine
from .roster import KnownWorker, Roster, message_fault
from .writer_answers import RowReturns, WriterAnswers

log = logging.getLogger("mlx_bulk")

_WAIT_SECONDS = 0.2  # for an event
_END_SECONDS = 4.0  # for what workers have finished when the run is to end early


class Driver:
    """One session of a run over a cluster."""

    def __init__(self, fleet: Fleet, hellos: dict[str, Joined], settings: ClusterConfig, run: OpenRun):
        self._fleet, self._hellos, self._settings, self._run = fleet, hellos, settings, run
        self._offer = RunDescription.of(run).offer()
        self._policies = LeasePolicies(run, self._offer.run, fleet)
        pictures = None if run.spec.images is None else run.config.data
        self._files = FileDesk(self._offer.run, pictures, self._policies.parcel, fleet.send)
        self._intake = FrameIntake(run.writer, run.spec.job.schema, run.layout, self._policies.require_named)
        self._quarantine = Quarantine(run, self._intake)
        self._log = LeaseLog(run.run_dir)
        self._leaser = Leaser(
            run.rows(),
            run.layout,
            RecordedRows(run.recovered, run.layout),
            session=secrets.token_hex(4),
            left=run.layout.total - run.writer.rows,
            lease_seconds=self._settings.lease_seconds,
            whole_shards=run.config.batch.deterministic,
            speculate=self._settings.speculate,
            suits=lambda worker, rows: self._roster.suits(worker, rows, fleet.workers()),
            finished=self._log.note_done,
        )
        self._roster, self._table = Roster(settings, monotonic()), WorkerTable(run.run_dir)
        self._progress, self._answers = Progress(), WriterAnswers(run.writer)
        self._returns = RowReturns(self._answers, self._leaser, self._quarantine)
        self._members = Membership(
            fleet,
            hellos,
            run,
            self._offer,
            self._roster,
            self._leaser,
            self._returns,
            self._policies,
            self._files,
            self._progress,
            self._log,
        )

    def run(self) -> tuple[Progress, bool]:
        """Does what is left of the run; see ``SessionWork``."""
        run = self._run
        self._progress.report_to(run.heartbeat.activity, lambda rows: None)
        self._progress.doing(NO_WORKERS)
        run.flush = self._intake.flush
        for joined in list(self._hellos.values()):
            self._members.join(joined)
        counts = lambda: replace(run.counts(self._policies.version), workers=self._table.count)  # noqa: E731
        with Watch(self._progress, counts, run.run_dir.add_metrics, run.show, lambda: run.noted, self._table):
            try:
                while run.writer.rows < run.layout.total and not run.process.stopped():
                    self._step()
                self._end()
            finally:
                run.writer.wait()
        return self._progress, run.writer.rows >= run.layout.total

    def _step(self) -> None:
        """Takes what has happened, and gives rows to workers that have too few."""
        self._run.writer.require_running()
        self._take_events(_WAIT_SECONDS if not self._answers.pending else _WAIT_SECONDS / 10)
        self._roster.require(self._fleet.workers(), monotonic())
        usable = self._roster.usable()
        self._table.look(usable, {lease.worker for lease in self._leaser.leases.values()}, monotonic())
        self._policies.look(usable)
        self._files.look()
        if not self._members.may_begin(monotonic()):
            return
        for rows in self._leaser.too_large(self._roster.longest(monotonic())):
            self._quarantine.take_unfit(rows, len(self._roster.workers))
        for lease in self._leaser.deal(usable, monotonic()):
            self._send(lease)
        self._returns.take(self._leaser.come())
        if usable and not self._answers.pending:
            self._quarantine.require_room(self._leaser.stuck(partial(self._roster.may_hold, now=monotonic())))
        for name in usable if not self._answers.pending else ():
            if (late := self._leaser.late(name, usable, monotonic())) is not None:
                lease, rows = late
                self._answers.look_up(rows.positions, partial(self._copy, lease.name, rows, name))

    def _take_events(self, wait: float) -> None:
        for event in self._fleet.events(wait) if self._intake.has_room(wait) else ():
            match event:
                case Joined():
                    self._members.join(event)
                case Left():
                    self._members.leave(event)
                case Told():
                    self._hear(event)
        self._answers.take()

    def _hear(self, told: Told) -> None:
        worker, message = self._roster.workers.get(told.worker), told.message
        if worker is None or getattr(message, "run", None) != self._offer.run:
            if isinstance(message, Frames):  # of another run: nobody waits for it
                self._fleet.send(told.worker, Ack(message.run, message.number))
            return
        if fault := message_fault(message, self._run.layout):
            if not worker.refused:
                self._members.refuse(told.worker, worker, fault)
            return
        if worker.ready:
            self._table.hear(told.worker)
        match message:
            case Ready():
                self._members.make_ready(told.worker, worker, message)
            case Begun():
                if self._lease_of(told.worker, message.lease) is not None:
                    self._leaser.begin(message.lease)
            case Frames():
                self._land(told.worker, worker, message)
            case Unfit():
                self._quarantine.note_unfit(message.position, worker.longest, message.reason)
            case NoRoom():
                self._take_unfit(told.worker, worker, message)
            case LeaseDone():
                self._end_lease(told.worker, message.lease)
            case PieceWanted() | PictureWanted() | PictureTaken():
                self._files.answer(told.worker, message)
            case PolicyLoaded():
                self._policies.note_loaded(message.policy)
            case PolicyRefused():
                self._members.refuse_policy(told.worker, worker, message)
            case Figures():
                worker.count(message.counts)
                self._table.note_memory(told.worker, message.counts.get("peak_memory_bytes"))
                if self._roster.sum_into(self._progress) and worker.ready and not worker.refused:
                    self._progress.doing(ROWS_TO_COME)
            case EngineDied():
                log.warning("%s: %s: %s", told.worker, message.cause, message.follows)
                self._log.note_again(told.worker, len(self._leaser.begun(told.worker, monotonic())), ENGINE)
            case RunRefused():
                self._members.refuse(told.worker, worker, f"would give other results: {one_a_line(message.reasons)}")
            case RunFailed():
                self._members.fail(told.worker, worker, message)
            case RunStopped():
                worker.stopped = True
            case _:
                pass

    def _lease_of(self, worker: str, name: str) -> OpenLease | None:
        """Returns the lease of this name; None where the worker does not have it, or not any more."""
        lease = self._leaser.leases.get(name)
        return lease if lease is not None and lease.worker == worker else None

    def _take_unfit(self, name: str, worker: KnownWorker, told: NoRoom) -> None:
        """Gives rows that must stay together, and for which a worker has no room, to another one."""
        if (lease := self._lease_of(name, told.lease)) is None:
            return
        log.warning("%s has no room for shard %d, which waits for a worker with more: %s", name, lease.given.shard, told.reason)
        lease.given.no_room = {**lease.given.no_room, worker.label: told.reason}
        self._returns.take(self._leaser.take_back([lease], monotonic()))

    def _end_lease(self, worker: str, name: str) -> None:
        """Forgets a lease. What did not arrive of its rows is given out again."""
        if self._lease_of(worker, name) is not None and (rows := self._leaser.end(name, monotonic())) is not None:
            self._returns.take([rows])

    def _send(self, lease: OpenLease) -> None:
        """Sends a lease."""
        rows, lease.policy = lease.given, self._policies.of(lease.given.shard)
        told = (rows.shard, pickle.dumps(rows.rows), rows.recorded, rows.alone, lease.policy)
        self._fleet.send(lease.worker, Lease(self._offer.run, lease.name, *told))
        self._log.note_again(lease.worker, lease.again, lease.cause)

    def _copy(self, lease: str, rows: RowSet, idle: str, states: list[RecordedRow]) -> None:
        """Gives what is left of rows of a late lease to a second worker."""
        worker, whole = self._roster.workers.get(idle), self._run.config.batch.deterministic
        resolved = {state.position for state in states if state.resolved}
        left = [row for row in rows.rows if row.position not in resolved or whole]
        if lease not in self._leaser.leases or worker is None or not worker.ready or len(resolved) == len(states):
            self._leaser.keep(lease, rows)
            return
        recorded = tuple((state.position, sample) for state in states for sample in state.samples)
        copy = self._leaser.copy(RowSet(rows.shard, left, recorded), idle, monotonic())
        self._send(copy)

    def _land(self, name: str, worker: KnownWorker, frames: Frames) -> None:
        def landed(kept: Tokens) -> None:
            kept.count_in(self._progress)
            self._fleet.send(name, Ack(frames.run, frames.number))

        try:
            fault = self._members.track.land(worker.label, *self._intake.land(frames, self._answers.passing_on(landed)))
            left = self._rows_left(name)
            self._leaser.note(name, frames.admitted, frames.resolved, monotonic())
            self._table.note_rows(name, left - self._rows_left(name))
        except ValueError as error:
            late = isinstance(error, OtherPolicy) and not error.is_fault(self._leaser.of(name))
            fault = "" if late else self._members.track.damage(name)
            log.warning("%s sent records that are %s (%s); they are done again", name, "too late" if late else "damaged", error)
            self._leaser.redo(frames.resolved)
            landed(Tokens())
        if fault and not worker.refused:
            self._members.refuse(name, worker, fault)

    def _rows_left(self, worker: str) -> int:
        return sum(len(lease.left) for lease in self._leaser.of(worker))

    def _end(self) -> None:
        """Has the workers end what they still do, and takes what they have finished."""
        self._members.ending = True
        self._returns.end()
        working = [name for name in self._roster.others("", self._fleet.workers()) if name in self._roster.workers]
        asked = [name for name in working if self._leaser.of(name) or self._run.process.stopped()]
        for name in asked:
            self._fleet.send(name, StopRun(self._offer.run))
        due = monotonic() + _END_SECONDS
        while monotonic() < due and any(not self._roster.workers[name].stopped for name in asked if name in self._fleet.workers()):
            self._take_events(_WAIT_SECONDS / 10)
        self._run.writer.wait()
        self._take_events(0.0)
