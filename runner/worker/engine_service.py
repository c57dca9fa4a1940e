"""The main loop of a worker's engine process: offers of runs, leases and stops come in, frames go out.

One thread reads messages, the calling thread runs the model. Models stay in memory from run to run. Does not know whether the other
end is an agent or a test.
"""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from ...configs.errors import BulkError
from ..cluster.description import RunDescription
from ..cluster.interface import Connection
from ..cluster.messages import Dismiss, Lease, NewestPolicy, RunFailed, RunOffer, RunRefused, RunStopped, StopRun
from ..core.errors import first_line
from ..core.host_process import HostProcess
from ..models.model_pool import ModelPool
from ..parcels.file_messages import NoParcel, PicturePart, Piece
from ..pipeline.job import Kind
from ..ranks.ranks import ALONE, Ranks
from .lease_session import LeaseSession
from .loaded_run import DifferentResults
from .local_config import RunGivenUp
from .parcel_shelf import ParcelShelf
from .picture_cache import PictureCache

log = logging.getLogger("mlx_bulk")


def serve_engine(
    connection: Connection, kinds: Mapping[str, Kind], process: HostProcess, ranks: Ranks = ALONE, models: Path | None = None
) -> None:
    """Works on the runs that the other end offers, until it is gone or dismisses this process, or the process is to end.

    kinds: the kinds of job by name. process: the process around it, see ``HostProcess``; its supervisor names suspect rows by the
    run's digest in place of its folder. ranks: the processes of a group, of which this is the first; the others call ``serve_rank``.
    models: see ``ModelPool.folder``.
    """
    _Service(connection, kinds, process, ModelPool(ranks, models)).run()


class _Service:
    def __init__(self, connection: Connection, kinds: Mapping[str, Kind], process: HostProcess, pool: ModelPool):
        self._connection, self._kinds, self._process, self._ranks = connection, kinds, process, pool.ranks
        self._pool = pool
        self._offers: SimpleQueue[RunOffer | None] = SimpleQueue()  # None: nothing more comes
        self._lock = threading.Lock()
        self._offered: RunOffer | None = None  # the run that is loaded, or is to be loaded next
        self._early: list[Lease] = []  # leases of a run whose models are not loaded yet
        self._session: LeaseSession | None = None
        self._pictures = PictureCache()
        self._shelf: ParcelShelf | None = None  # of the run whose models are loaded, or are being loaded

    def run(self) -> None:
        reading = threading.Thread(target=self._read, name="messages", daemon=True)
        reading.start()
        while (offer := self._ranks.wait_for(self._offers.get)) is not None:
            with TemporaryDirectory(prefix="mlx-bulk-worker-") as scratch:
                self._work(offer, Path(scratch))

    def _read(self) -> None:
        """Takes in messages until the other end is gone."""
        try:
            while not self._process.stopped():
                message = self._connection.receive(0.5)
                match message:
                    case RunOffer():
                        self._offer(message)
                    case Lease():
                        self._lease(message)
                    case Piece() | NoParcel() | PicturePart():
                        self._hand_over(message)
                    case NewestPolicy():
                        self._note_newest(message)
                    case StopRun():
                        self._stop(message)
                    case Dismiss():
                        break
                    case _:
                        pass
        except EOFError:
            pass
        finally:
            with self._lock:
                if self._session is not None:
                    self._session.stopping.set()
                self._offered = None
            self._offers.put(None)

    def _offer(self, offer: RunOffer) -> None:
        """Ends the run that is going on, and takes this one; a run that is loaded already is ready at once."""
        with self._lock:
            session = self._session
            if session is not None and session.run_name == offer.run and not session.stopping.is_set():
                self._connection.send(session.ready)
                return
            if session is not None:
                session.stopping.set()
            self._offered, self._early = offer, []
        self._offers.put(offer)

    def _lease(self, lease: Lease) -> None:
        """Hands a lease to its run; one of another run is dropped, as the driver has ended that."""
        with self._lock:
            session = self._session
            if session is not None and session.run_name == lease.run and not session.stopping.is_set():
                session.take(lease)
            elif self._offered is not None and self._offered.run == lease.run:
                self._early.append(lease)

    def _hand_over(self, message: Piece | NoParcel | PicturePart) -> None:
        if isinstance(message, PicturePart):
            if (session := self._session) is not None and session.run_name == message.run:
                session.pictures.take(message)
        elif (shelf := self._shelf) is not None and shelf.run == message.run:
            shelf.take(message)

    def _note_newest(self, newest: NewestPolicy) -> None:
        if (session := self._session) is not None and session.run_name == newest.run:
            session.note_newest(newest.version)

    def _stop(self, stop: StopRun) -> None:
        with self._lock:
            if self._session is not None and self._session.run_name == stop.run:
                self._session.stopping.set()
            elif self._offered is not None and self._offered.run == stop.run:
                self._offered = None

    def _work(self, offer: RunOffer, scratch: Path) -> None:
        """Loads the models of a run and does its leases, until another is offered or this one is stopped."""
        if not self._ranks.flag(self._offered is offer):  # stopped, or another was offered meanwhile
            self._connection.send(RunStopped(offer.run))
            return
        shelf = self._shelf = ParcelShelf(offer.run, scratch / "parcels", self._connection.send)
        try:
            session = LeaseSession(
                RunDescription.of_offer(offer),
                self._kinds,
                self._pool,
                shelf,
                self._pictures,
                scratch,
                lambda: self._offered is not offer or self._process.stopped(),
                self._process,
                self._connection.send,
            )
        except RunGivenUp:
            self._connection.send(RunStopped(offer.run))
            return
        except DifferentResults as difference:
            self._connection.send(RunRefused(offer.run, difference.reasons))
            return
        except BulkError as error:
            self._connection.send(RunFailed(offer.run, type(error).__name__, str(error)))
            return
        with self._lock:
            self._session = session
            if self._offered is offer:
                for lease in self._early:
                    session.take(lease)
                self._early = []
                self._connection.send(session.ready)
            else:  # stopped meanwhile: leases that have come are of what was offered since, perhaps the same run
                session.stopping.set()
        try:
            session.run()
        except BulkError as error:
            self._connection.send(RunFailed(offer.run, type(error).__name__, str(error)))
        except Exception as error:
            if self._ranks.several:  # another rank may be at another place: all start again
                raise
            log.exception("the run ended here")
            self._connection.send(RunFailed(offer.run, type(error).__name__, first_line(error)))
        finally:
            with self._lock:
                self._session = None
                if self._offered is offer:
                    self._offered = None
        self._connection.send(session.figures())
        self._connection.send(RunStopped(offer.run))
        if self._ranks.lost:
            raise RuntimeError("an error has ended the run within a step, and the other ranks are elsewhere: all end")
