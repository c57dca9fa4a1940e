"""Who works on a run: workers join, become ready, fail, are refused, and leave. Their rows go to others.

Reads no frames, and deals no rows.
"""

import logging
from dataclasses import replace
from time import monotonic

from ..core.errors import ModelError
from ..core.progress import Progress
from ..leasing.lease_log import RESTART, LeaseLog
from ..leasing.leaser import Leaser
from ..leasing.track_record import TrackRecords
from ..parcels.file_desk import FileDesk
from ..pipeline.model_work import OpenRun
from .interface import Fleet, Joined, Left
from .lease_policies import LeasePolicies
from .messages import PolicyRefused, Ready, RunFailed, RunOffer, StopRun
from .roster import KnownWorker, Roster, error_of, facts_of, message_fault, version_fault
from .writer_answers import RowReturns

log = logging.getLogger("mlx_bulk")

NO_WORKERS, ROWS_TO_COME = "waiting for workers", "waiting for the workers' rows"  # what a driver does
_JOIN_SECONDS = 0.7  # after the first worker of an earlier start, others join: each looks for its driver three times a second


class Membership:
    """The workers of ``run``. offer: what each is sent; hellos: of those that are connected, for later runs, too.

    track: what speaks against each; ``progress`` is told once workers are there, and when none is left.
    """

    def __init__(
        self,
        fleet: Fleet,
        hellos: dict[str, Joined],
        run: OpenRun,
        offer: RunOffer,
        roster: Roster,
        leaser: Leaser,
        returns: RowReturns,
        policies: LeasePolicies,
        files: FileDesk,
        progress: Progress,
        log_of_leases: LeaseLog,
    ):
        self._fleet, self._hellos, self._run, self._offer = fleet, hellos, run, offer
        self._roster, self._leaser, self._returns, self._policies = roster, leaser, returns, policies
        self._files, self._progress, self._log = files, progress, log_of_leases
        self._noted = set[str]()  # workers that sessions.jsonl has since this start
        self._alone = True  # no worker is there that can be given rows
        self._begun = False  # enough have been there
        self._found: float | None = None  # when the first worker joined that was at the run already
        self.track = TrackRecords()
        self.ending = False  # errors of workers do not count any more

    def may_begin(self, now: float) -> bool:
        """Returns True once enough workers have been there, and those of an earlier start: rows given to others now would be done twice."""
        awaited = self._found is not None and now < self._found + _JOIN_SECONDS
        self._begun = self._begun or (len(self._roster.usable()) >= self._roster.least and not awaited)
        return self._begun

    def _tell_waiting(self) -> None:
        """Tells what the run waits for while workers are there: more of them, or their rows."""
        there, least = len(self._roster.usable()), self._roster.least
        self._progress.doing(ROWS_TO_COME if self._begun or there >= least else f"{NO_WORKERS}: {there} of {least} are ready")

    def join(self, joined: Joined) -> None:
        """Offers the run to a worker. One that has leases since before this start goes on with them; a later run knows nothing of them."""
        worker = self._roster.join(joined, monotonic())
        if worker.refused:  # it has connected again
            self._fleet.send(joined.worker, StopRun(self._offer.run, worker.refused))
            return
        if fault := self.track.verdict(worker.label) or version_fault(joined.hello):
            self.refuse(joined.worker, worker, fault)
            return
        if joined.hello.run == self._offer.run:
            if fault := message_fault(joined.hello, self._run.layout):
                self.refuse(joined.worker, worker, fault)
                return
            self._found = monotonic() if self._found is None else self._found
            twice = self._leaser.adopt(joined.worker, joined.hello.leases, monotonic(), worker.label)
            self._log.note_again(joined.worker, twice, RESTART)
            self._policies.name_in(self._leaser.of(joined.worker))
        self._hellos[joined.worker] = Joined(joined.worker, replace(joined.hello, run=None, leases={}))
        self._fleet.send(joined.worker, self._offer)

    def make_ready(self, name: str, worker: KnownWorker, ready: Ready) -> None:
        """Notes what a worker tells of its models, which was checked; it can be given rows now, unless it has been refused meanwhile."""
        if worker.refused:
            return
        facts = facts_of(ready)
        worker.ready, worker.longest = True, ready.longest
        if isinstance(rows := facts.get("batch", {}).get("rows"), int):
            self._leaser.equip(name, max(1, (rows >> facts.get("halved", 0)) // (self._run.spec.job.samples or 1)))
        if not self._run.noted:
            self._run.note({**facts, "workers": sorted(self._roster.workers)})
        if name not in self._noted:
            self._noted.add(name)
            hello = worker.joined.hello
            self._run.run_dir.add_worker({"worker": name, "host": hello.host, "facts": hello.facts, "session": facts})
        self._alone = False
        self._tell_waiting()
        self._policies.tell_newest(name)
        log.info("%s works on the run: %s on %s", name, facts.get("dtype"), facts.get("device"))

    def leave(self, left: Left) -> None:
        """Gives the rows of a worker that has gone to others."""
        self._hellos.pop(left.worker, None)
        name, worker = left.worker, self._roster.workers.get(left.worker)
        if worker is None:
            return
        if worker.ready:
            log.warning("%s has left: %s; its rows go to others", name, left.reason)
        was_ready, now = worker.ready, monotonic()
        worker.ready, worker.left = False, now
        if was_ready:
            self._tell_fewer()
        self._files.forget(name)
        leases = self._leaser.of(name)
        self._returns.take(self._leaser.take_back(leases, now) if left.in_order else self._leaser.lose(name, now, worker.label))
        if not left.in_order and not worker.refused and (fault := self.track.lose(worker.label, worker.since, now)):
            self.refuse(name, worker, fault)

    def refuse(self, name: str, worker: KnownWorker, why: str) -> None:
        """Uses a worker no more, tells it why, and gives its rows to others: they have nothing to do with it."""
        log.warning("%s is not used: it %s", name, why)
        worker.refused = f"it {why}"
        if worker.ready:
            self._tell_fewer()
        self._fleet.send(name, StopRun(self._offer.run, worker.refused))
        self._files.forget(name)
        self._returns.take(self._leaser.take_back(self._leaser.of(name), monotonic()))

    def _tell_fewer(self) -> None:
        """Tells that a worker can be given no rows any more. One that comes and goes before it can does not make a run look busy."""
        if not self._roster.usable() and not self._alone:
            self._alone = True
            self._progress.doing(NO_WORKERS)
        elif not self._alone and not self._begun:
            self._tell_waiting()

    def refuse_policy(self, name: str, worker: KnownWorker, refused: PolicyRefused) -> None:
        """Gives the rows of a policy that a worker cannot load to others: under another policy, unless others have loaded it."""
        named = [lease for lease in self._leaser.of(name) if lease.policy == refused.policy]
        self._returns.take(self._leaser.take_back(named, monotonic()))
        if not self._policies.refuse(refused.policy, refused.reason):
            self.refuse(name, worker, f"cannot load policy {refused.policy}: {refused.reason}")

    def fail(self, name: str, worker: KnownWorker, failed: RunFailed) -> None:
        """Ends the run for an error of the data, and for any error where no other worker can come; else goes on without this one."""
        error = error_of(name, failed)
        self._run.writer.wait()
        if self.ending or self._run.writer.rows >= self._run.layout.total:
            log.warning("%s; the run has ended without it", error)
            worker.stopped = True
            return
        begun = [lease.given.shard for lease in self._leaser.of(name) if lease.begun]
        breaks = isinstance(error, ModelError) and self.track.breaks_again(name, begun) and self._run.config.batch.deterministic
        if breaks or failed.kind == "DataError" or self._roster.is_last(name):
            raise error
        worker.failed = error
        if isinstance(error, ModelError):  # the rows may have done it
            self._returns.take(self._leaser.lose(name, monotonic(), worker.label))
        self.refuse(name, worker, f"cannot go on: {failed.message}")
