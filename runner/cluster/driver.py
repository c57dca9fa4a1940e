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
from ..core.errors import ModelError
from ..core.progress import Progress
from ..leasing.lease_log import LeaseLog
from ..leasing.leaser import Leaser
from ..leasing.open_lease import OpenLease
from ..leasing.row_set import RowSet
from ..leasing.track_record import TrackRecords
from ..pipeline.model_work import OpenRun
from ..pipeline.progress_display import Watch
from ..pipeline.row_requests import RecordedRows
from ..store.shard_ledger import RecordedRow
from .description import RunDescription
from .frame_intake import FrameIntake, Tokens
from .interface import Fleet, Joined, Left, Told
from .lease_policies import DroppedPolicy, LeasePolicies
from .messages import (
    Ack,
    Begun,
    EngineDied,
    Figures,
    Frames,
    Lease,
    LeaseDone,
    PieceWanted,
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
from .roster import KnownWorker, Roster, error_of, facts_of, version_fault
from .row_returns import RowReturns
from .writer_answers import WriterAnswers

log = logging.getLogger("mlx_bulk")

_WAIT_SECONDS = 0.2  # for an event
_END_SECONDS = 4.0  # for what workers have finished when the run is to end early


class Driver:
    """One session of a run over a cluster."""

    def __init__(self, fleet: Fleet, hellos: dict[str, Joined], settings: ClusterConfig, run: OpenRun):
        self._fleet, self._hellos, self._settings, self._run = fleet, hellos, settings, run
        self._offer = RunDescription.of(run).offer()
        self._policies = LeasePolicies(run, self._offer.run, fleet)
        self._intake = FrameIntake(run.writer, run.spec.job.schema, run.layout, self._policies.require_named)
        self._quarantine = Quarantine(run, self._intake)
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
        )
        self._roster, self._track = Roster(settings, monotonic()), TrackRecords()
        self._log, self._progress, self._answers = LeaseLog(run.run_dir), Progress(), WriterAnswers(run.writer)
        self._returns = RowReturns(self._answers, self._leaser, self._quarantine)
        self._began = self._ending = False

    def run(self) -> tuple[Progress, bool]:
        """Does what is left of the run; see ``SessionWork``."""
        run = self._run
        self._progress.report_to(run.heartbeat.activity, lambda rows: None)
        self._progress.doing("waiting for workers")
        run.flush = self._intake.flush
        for joined in list(self._hellos.values()):
            self._join(joined)
        with Watch(self._progress, lambda: run.counts(self._policies.version), run.run_dir.add_metrics, run.show, lambda: run.noted):
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
        self._policies.look(usable)
        if not self._began and len(usable) < self._settings.min_workers:
            return
        self._began = self._began or bool(usable)
        for rows in self._leaser.too_large(self._roster.longest(monotonic())):
            self._quarantine.take_unfit(rows, len(self._roster.workers))
        for lease in self._leaser.deal(usable, monotonic()):
            self._send(lease)
        for name in usable if not self._answers.pending else ():
            if (late := self._leaser.late(name, usable, monotonic())) is not None:
                lease, rows = late
                self._answers.look_up(rows.positions, partial(self._copy, lease.name, rows, name))

    def _take_events(self, wait: float) -> None:
        for event in self._fleet.events(wait) if self._intake.has_room(wait) else ():
            match event:
                case Joined():
                    self._join(event)
                case Left():
                    self._hellos.pop(event.worker, None)
                    self._leave(event)
                case Told():
                    self._hear(event)
        self._answers.take()

    def _hear(self, told: Told) -> None:
        worker, message = self._roster.workers.get(told.worker), told.message
        if worker is None or getattr(message, "run", None) != self._offer.run:
            if isinstance(message, Frames):  # of another run: nobody waits for it
                self._fleet.send(told.worker, Ack(message.run, message.number))
            return
        match message:
            case Ready():
                self._make_ready(told.worker, worker, message)
            case Begun():
                self._leaser.begin(message.lease)
            case Frames():
                self._land(told.worker, worker, message)
            case Unfit():
                self._quarantine.note_unfit(message.position, worker.longest, message.reason)
            case LeaseDone():
                self._end_lease(told.worker, message.lease)
            case PieceWanted() | PolicyLoaded():
                self._policies.hear(told.worker, message)
            case PolicyRefused():
                self._refuse_policy(told.worker, worker, message)
            case Figures():
                worker.count(message.counts)
                self._roster.sum_into(self._progress)
            case EngineDied():
                log.warning("%s: %s: %s", told.worker, message.cause, message.follows)
                self._log.note_again(told.worker, len(self._leaser.begun(told.worker, monotonic())))
            case RunRefused():
                self._refuse(told.worker, worker, f"would give other results: {one_a_line(message.reasons)}")
            case RunFailed():
                self._fail(told.worker, worker, message)
            case RunStopped():
                worker.stopped = True
            case _:
                pass

    def _end_lease(self, worker: str, name: str) -> None:
        """Notes who has done the rows of a lease. What did not arrive of them is given out again."""
        lease, now = self._leaser.leases.get(name), monotonic()
        if lease is None or (rows := self._leaser.end(name, now)) is None:
            return
        self._log.note_done(lease, now)
        self._returns.take([rows])

    # -------------------------------------------------------------------------------------------------- workers

    def _join(self, joined: Joined) -> None:
        """Offers the run to a worker. One that has leases since before this start goes on with them; a later run knows nothing of them."""
        worker = self._roster.join(joined)
        if worker.refused:  # it has connected again
            self._fleet.send(joined.worker, StopRun(self._offer.run, worker.refused))
            return
        if fault := self._track.verdict(worker.label) or version_fault(joined.hello):
            self._refuse(joined.worker, worker, fault)
            return
        if joined.hello.run == self._offer.run:
            self._leaser.adopt(joined.worker, joined.hello.leases, monotonic(), worker.label)
            self._policies.name_in(self._leaser.of(joined.worker))
        self._hellos[joined.worker] = Joined(joined.worker, replace(joined.hello, run=None, leases={}))
        self._fleet.send(joined.worker, self._offer)

    def _make_ready(self, name: str, worker: KnownWorker, ready: Ready) -> None:
        try:
            facts = facts_of(ready)
        except ValueError as error:
            self._refuse(name, worker, f"tells of its model what cannot be read ({error}); install the same version of mlx-bulk")
            return
        worker.ready, worker.longest = True, ready.longest
        if isinstance(rows := facts.get("batch", {}).get("rows"), int):
            self._leaser.equip(name, max(1, (rows >> facts.get("halved", 0)) // (self._run.spec.job.samples or 1)))
        if not self._run.noted:
            self._run.note({**facts, "workers": sorted(self._roster.workers)})
        self._progress.doing("waiting for the workers' rows")
        self._policies.tell_newest(name)
        log.info("%s works on the run: %s on %s", name, facts.get("dtype"), facts.get("device"))

    def _leave(self, left: Left) -> None:
        name, worker = left.worker, self._roster.workers.get(left.worker)
        if worker is None:
            return
        if worker.ready:
            log.warning("%s has left: %s; its rows go to others", name, left.reason)
        worker.ready, worker.left = False, monotonic()
        self._policies.forget(name)
        leases, now = self._leaser.of(name), monotonic()
        self._returns.take(self._leaser.take_back(leases, now) if left.in_order else self._leaser.lose(name, now, worker.label))
        if not left.in_order and not worker.refused and (fault := self._track.lose(worker.label)):
            self._refuse(name, worker, fault)

    def _refuse(self, name: str, worker: KnownWorker, why: str) -> None:
        """Uses a worker no more, tells it why, and gives its rows to others: they have nothing to do with it."""
        log.warning("%s is not used: it %s", name, why)
        worker.refused = f"it {why}"
        self._fleet.send(name, StopRun(self._offer.run, worker.refused))
        self._policies.forget(name)
        self._returns.take(self._leaser.take_back(self._leaser.of(name), monotonic()))

    def _refuse_policy(self, name: str, worker: KnownWorker, refused: PolicyRefused) -> None:
        """Gives the rows of a policy that a worker cannot load to others: under another policy, unless others have loaded it."""
        named = [lease for lease in self._leaser.of(name) if lease.policy == refused.policy]
        self._returns.take(self._leaser.take_back(named, monotonic()))
        if not self._policies.refuse(refused.policy, refused.reason):
            self._refuse(name, worker, f"cannot load policy {refused.policy}: {refused.reason}")

    def _fail(self, name: str, worker: KnownWorker, failed: RunFailed) -> None:
        """Ends the run for an error of the data, and for any error where no other worker can come; else goes on without this one."""
        error = error_of(name, failed)
        self._run.writer.wait()
        if self._ending or self._run.writer.rows >= self._run.layout.total:
            log.warning("%s; the run has ended without it", error)
            worker.stopped = True
            return
        begun = [lease.given.shard for lease in self._leaser.of(name) if lease.begun]
        breaks = isinstance(error, ModelError) and self._track.breaks_again(name, begun) and self._run.config.batch.deterministic
        if breaks or failed.kind == "DataError" or self._roster.is_last(name):
            raise error
        worker.failed = error
        if isinstance(error, ModelError):  # the rows may have done it
            self._returns.take(self._leaser.lose(name, monotonic(), worker.label))
        self._refuse(name, worker, f"cannot go on: {failed.message}")

    def _send(self, lease: OpenLease) -> None:
        rows, lease.policy = lease.given, self._policies.of(lease.given.shard)
        told = (rows.shard, pickle.dumps(rows.rows), rows.recorded, rows.alone, lease.policy)
        self._fleet.send(lease.worker, Lease(self._offer.run, lease.name, *told))
        self._log.note_again(lease.worker, lease.again)

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
            fault = self._track.land(worker.label, *self._intake.land(frames, self._answers.passing_on(landed)))
            self._leaser.note(name, frames.admitted, frames.resolved, monotonic())
        except ValueError as error:
            fault = "" if (late := isinstance(error, DroppedPolicy)) else self._track.damage(name)
            log.warning("%s sent records that are %s (%s); they are done again", name, "too late" if late else "damaged", error)
            landed(Tokens())
        if fault and not worker.refused:
            self._refuse(name, worker, fault)

    def _end(self) -> None:
        """Has the workers end what they still do, and takes what they have finished."""
        self._ending = True
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
