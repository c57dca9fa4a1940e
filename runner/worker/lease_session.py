"""A worker's part of one run: the models are loaded, and rows go through them as leases come in.

    leases ─► reading thread ─► windows ─► model ─► outcomes ─► recording thread ─► LeaseSink ─► frames

The thread that calls ``run`` alone touches the model. Does not know where leases come from, nor where frames go.
"""

import json
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import cast

from ...configs.rollout import RolloutConfig
from ..cluster.description import RunDescription
from ..cluster.messages import Begun, Figures, FromWorker, Lease, LeaseDone, NoRoom, PolicyLoaded, PolicyRefused, Ready
from ..cluster.roster import COUNTS
from ..core.errors import OutOfRoom, RunEnded
from ..core.host_process import HostProcess
from ..core.requests import AnyRequest, BadRow, Row
from ..engine.interface import EngineInterface
from ..models.device_memory import clear_spare_memory, peak_bytes, shortage_as_error
from ..models.model_pool import ModelPool
from ..pipeline.io_threads import IOThreads, SessionInput, SessionRules
from ..pipeline.job import Kind
from ..pipeline.loading import LoadedModels
from ..policies.policy_engine import full_weights_fit
from ..policies.policy_store import PolicyStore
from ..ranks.lockstep import SharedInput
from .lease_sink import LeaseSink
from .loaded_run import loaded_run
from .parcel_shelf import ParcelShelf
from .picture_cache import PictureCache
from .recorded_places import RecordedPlaces
from .room_check import RoomCheck
from .sent_pictures import SentPictures
from .sent_policies import PolicyNotLoaded, SentPolicies

log = logging.getLogger("mlx_bulk")

FIGURES_SECONDS = 2.0  # between two messages with the engine's counts; what is finished is sent then, too
EARLY_SECONDS, EARLY_RECORDS = 0.5, 8  # so many are sent sooner: what is not sent is done again when the engine dies
_POLL_SECONDS = 0.1
_CURE = "lower batch.memory, batch.rows or batch.tokens"
_SHORTAGES = 3  # in turn, without a finished lease between: then the rows are not to blame


class LeaseSession:
    """A worker's part of the run that ``described`` tells of. Making one loads the models.

    shelf, scratch, given_up: see ``local_config``. cache: of pictures. tell: sends messages to the driver. Raises as ``loaded_run``.
    """

    def __init__(
        self,
        described: RunDescription,
        kinds: Mapping[str, Kind],
        pool: ModelPool,
        shelf: ParcelShelf,
        cache: PictureCache,
        scratch: Path,
        given_up: Callable[[], bool],
        process: HostProcess,
        tell: Callable[[FromWorker], None],
    ):
        self._shelf = shelf
        self._leases: SimpleQueue[Lease] = SimpleQueue()
        self._open: dict[str, Lease] = {}
        self._again: deque[Lease] = deque()  # were read ahead when a policy was refused
        self.stopping = threading.Event()
        self._described, self._process, self._tell = described, process, tell
        self._orders = process.supervisor.orders(Path(described.run))
        self._ranks, halved = pool.ranks, pool.ranks.share(self._orders.batch_halvings)
        self.pictures = SentPictures(described.run, cache, tell, self._stopped)
        loaded = loaded_run(described, kinds, pool, scratch, halved, shelf, given_up, self.pictures.read)
        config, spec, models = loaded.config, loaded.spec, loaded.models
        self._loaded, self._scratch = loaded, scratch
        self._config, self._spec = config, spec
        self._static, self._room = models.setup.static, RoomCheck(models.row_check(), described.layout)
        self._policies = self._policies_of(models, shelf)
        self._engine = self._new_engine()
        self._at: int | None = None  # the shard whose rows were given to the engine last
        self._shortages = 0  # in turn
        self._sink = LeaseSink(described.run, spec.job.schema, described.layout, self._tell_of_leases)
        self._recorded = RecordedPlaces(described.layout)
        self._next: Lease | None = None  # it runs alone, and waits for the leases before it
        self._refused: dict[str, str] = {}  # policies that cannot be loaded here, with the reason
        self.ready = Ready(described.run, json.dumps({**models.about, "halved": halved}, default=str), models.setup.limits.longest)

    @property
    def run_name(self) -> str:
        """The run's digest."""
        return self._described.run

    def take(self, lease: Lease) -> None:
        """Takes a lease, and asks for its policy. For any thread."""
        if lease.policy is not None:
            self._shelf.want(lease.policy)
        self._leases.put(lease)

    def note_newest(self, version: int) -> None:
        """Notes the trainer's newest finished step. For any thread."""
        if self._policies is not None:
            self._policies.note_newest(version)

    def run(self) -> None:
        """Does leases until ``stopping`` is set. All that is finished has been sent when it returns. Raises BulkError."""
        process, layout = self._process, self._described.layout
        process.supervisor.begin(Path(self.run_name), self._static, layout.positions)
        ended = threading.Event()
        figures = threading.Thread(target=self._tell_figures, args=(ended,), name="figures", daemon=True)
        figures.start()
        try:
            while self._ranks.wait_for(self._has_lease) and self._next is not None:
                first, self._next = self._next, None
                with shortage_as_error(_CURE), suppress(RunEnded):
                    self._run_leases(first)
        except Exception:
            if not self._ranks.lost:  # the others wait for the next lease
                self._ranks.wait_for(lambda: False)
            raise
        finally:
            ended.set()
            figures.join()
            self._sink.push()
            if not self._ranks.lost:  # else another rank may have died of the rows in the model
                process.supervisor.note_in_flight(())

    def _new_engine(self) -> EngineInterface:
        engine = self._loaded.engine(self._scratch, self._described.layout, self._policies)
        engine.progress.note_in_flight = self._process.supervisor.note_in_flight
        return engine

    def _policies_of(self, models: LoadedModels, shelf: ParcelShelf) -> SentPolicies | None:
        """Returns the policies that the driver names in leases; None for a run with one policy, or none."""
        config, adapters = self._config, models.setup.adapters
        if not isinstance(config, RolloutConfig) or config.policy.watch is None or adapters is None:
            return None
        store = PolicyStore(shelf.root, adapters.weights())
        loaded = lambda name: self._tell(PolicyLoaded(self.run_name, name))  # noqa: E731
        return SentPolicies(adapters, store, full_weights_fit(models.setup), shelf, loaded, self._stopped)

    def _stopped(self) -> bool:
        return self.stopping.is_set() or self._process.stopped()

    def _has_lease(self) -> bool:
        """Waits for the next lease; returns False when the session ends before."""
        while self._next is None and not self._stopped():
            self._next = self._wait_for_lease(_POLL_SECONDS)
        return self._next is not None

    def _run_leases(self, first: Lease) -> None:
        """Runs ``first`` and all that follow it, up to one that runs alone; a first one that runs alone is not followed by any."""
        done = threading.Event()  # the engine takes no more windows
        session = SessionInput(self._spec.job, self._windows(first, done), self._described.layout, self._recorded.recovered)
        rules = SessionRules(
            check=self._room,
            stopped=self._stopped,
            whole_shards=self._static,
            fail_fast=self._config.on_error == "fail",
            fatal=self._orders.fatal_rows,
        )
        threads = IOThreads(session, rules, self._sink, self._engine.newest_version)
        refusal: PolicyNotLoaded | None = None
        shortage: str | None = None
        try:
            tokens = self._sink.tokens
            shared = SharedInput(self._ranks, lambda wait: tokens.note_window(self._held(threads.next_window(wait))), threads.stopped)
            with shortage_as_error(_CURE):
                for outcome in self._engine.run(shared.next_window, shared.stopped):
                    tokens.note_outcome(outcome)
                    threads.put(outcome)
        except PolicyNotLoaded as error:  # nothing was in flight
            refusal = error
        except OutOfRoom as error:
            self._shortages += 1
            if not self._static or self._ranks.several or self._shortages >= _SHORTAGES:
                threads.abandon()
                raise
            shortage = str(error)
        except BaseException:
            threads.abandon()
            self._ranks.lost = self._ranks.several
            raise
        finally:
            done.set()
            threads.close()
        if refusal is not None:
            self._refuse(refusal)
        elif self._static and not self._stopped():
            self._give_up_shards(shortage)

    def _held(self, window: list[AnyRequest] | None) -> list[AnyRequest] | None:
        """Returns the window that the engine gets next; None, as after the last one, where memory here does not hold it."""
        if window:
            shard = self._described.layout.shard_of(window[0].row)
            if self._room.why(shard) is not None:
                return None
            self._at = shard
        return window

    def _refuse(self, refusal: PolicyNotLoaded) -> None:
        """Gives up the leases of a policy that cannot be loaded here."""
        self._refused[refusal.name] = refusal.reason
        self._drop_open(lambda lease: lease.policy == refusal.name)
        self._tell(PolicyRefused(self.run_name, refusal.name, refusal.reason))

    def _give_up_shards(self, shortage: str | None) -> None:
        """Gives up the shards that memory does not hold, and goes on with others. shortage: what the engine ended with, if it did."""
        if shortage is not None:
            if self._at is not None:
                self._room.note(self._at, shortage)
            self._engine = self._new_engine()  # the old one is somewhere within a step
            self._process.supervisor.note_in_flight(())
            clear_spare_memory()
            self._tell(self.figures())
        for lease in self._drop_open(lambda lease: self._room.why(lease.shard) is not None):
            log.info("no room for shard %d: %s", lease.shard, self._room.why(lease.shard))  # the driver warns of it
            self._tell(NoRoom(self.run_name, lease.lease, self._room.why(lease.shard) or ""))
            self._room.forget(lease.shard)

    def _drop_open(self, gone: Callable[[Lease], bool]) -> list[Lease]:
        """Forgets all open leases. Returns those that are ``gone``; the others, which were read ahead, are run again."""
        given_up = [lease for lease in self._open.values() if gone(lease)]
        for lease in self._open.values():
            self._sink.forget(lease.lease)
            if not gone(lease):
                self._again.append(lease)
        self._open.clear()
        return given_up

    def _windows(self, lease: Lease, done: threading.Event) -> Iterator[list[Row | BadRow]]:
        """Yields the rows of one lease after another. Runs in the reading thread."""
        while True:
            yield self._opened(lease)
            if lease.alone:
                return
            following = None
            while following is None:
                if done.is_set() or self._stopped():
                    return
                following = self._wait_for_lease(_POLL_SECONDS)
            if following.alone:
                self._next = following
                return
            lease = following

    def _wait_for_lease(self, seconds: float) -> Lease | None:
        """Returns the next lease whose policy can be loaded here, as far as is known; None where ``seconds`` bring none."""
        if self._again:
            return self._again.popleft()
        while True:
            try:
                lease = self._leases.get(timeout=seconds)
            except Empty:
                return None
            if lease.policy is None or (reason := self._refused.get(lease.policy)) is None:
                return lease
            self._tell(PolicyRefused(self.run_name, lease.policy, reason))

    def _opened(self, lease: Lease) -> list[Row | BadRow]:
        """Returns the rows of a lease, and notes what of them is recorded."""
        rows = cast("list[Row | BadRow]", pickle.loads(lease.rows))
        self._recorded.note(lease, [row.position for row in rows])
        if self._policies is not None and lease.policy is not None:
            self._policies.assign(lease.shard, lease.policy)
        self._open[lease.lease] = lease
        self._sink.expect(lease.lease, lease.shard, [row.position for row in rows], lease.recorded)
        self._tell(Begun(self.run_name, lease.lease))
        return rows

    def _tell_figures(self, ended: threading.Event) -> None:
        told = monotonic()
        while not ended.wait(EARLY_SECONDS):
            if monotonic() - told < FIGURES_SECONDS:
                self._sink.push(EARLY_RECORDS)
                continue
            told = monotonic()
            self._sink.push()
            self._tell(self.figures())

    def _tell_of_leases(self, message: FromWorker) -> None:
        """Sends the counts before the end of a lease, as the run may be over with it."""
        if isinstance(message, LeaseDone):
            self._open.pop(message.lease, None)
            self._shortages = 0
            self._tell(self.figures())
        self._tell(message)

    def figures(self) -> Figures:
        """Returns the engine's counts since the models were loaded."""
        progress = self._engine.progress
        counts = {name: getattr(progress, name) for name in COUNTS}
        return Figures(self.run_name, {**counts, "peak_memory_bytes": peak_bytes()}, progress.activity.now)
