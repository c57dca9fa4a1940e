"""The work of one worker on one run: the engine's process, its deaths, and what it owes the driver.

``HeldLeases`` is the memory, ``Suspects`` draws the conclusions from a death. Knows no connection: what the driver is to be told goes
to ``tell``, which drops it while there is no driver.
"""

import json
import logging
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any

from ...runner.cluster.held_leases import HeldLeases
from ...runner.cluster.messages import (
    Ack,
    Begun,
    EngineDied,
    Figures,
    Frames,
    FromWorker,
    Lease,
    LeaseDone,
    Message,
    NewestPolicy,
    NoRoom,
    PolicyLoaded,
    PolicyRefused,
    Ready,
    RunFailed,
    RunOffer,
    RunRefused,
    RunStopped,
    StopRun,
    Unfit,
    one_a_line,
)
from ...runner.core.errors import BulkError, ModelError
from ...runner.core.host_process import Orders
from ...runner.parcels.file_messages import NoParcel, PicturePart, PictureTaken, PictureWanted, Piece, PieceWanted
from ..supervision.crash_suspects import Suspects
from ..supervision.supervisor import DEATHS
from .engine_process import EngineEnded, EngineProcess, EngineSaid

log = logging.getLogger("mlx_bulk")

FAULTS = 3  # of a group's machines in turn: after so many its run goes elsewhere
SILENT_SECONDS = 60.0  # of an engine at work, which sends its figures every 2 seconds

Starter = Callable[[Suspects, "SimpleQueue[Any]"], EngineProcess]


class RunWork:
    """What this worker does for a driver. start: starts an engine's process, at the first offer and after each death."""

    def __init__(self, start: Starter, inbox: "SimpleQueue[Any]", tell: Callable[[FromWorker], None]):
        self.held = HeldLeases()
        self._start, self._inbox, self._tell = start, inbox, tell
        self._offer: RunOffer | None = None  # of the run that the engine is at
        self._ready: Ready | None = None  # its first answer to it
        self._serving = False  # the engine takes leases
        self._asked: dict[type, PieceWanted | PictureWanted] = {}  # by the engine, and not answered
        self._newest: NewestPolicy | None = None
        self._stopping: str | None = None  # a run that the driver has ended and the engine has not
        self._ending = False
        self._suspects = Suspects()
        self._engine: EngineProcess | None = None
        self._ordered = set[str]()  # runs for which the engine's process has orders
        self._heard = monotonic()  # of the engine
        self._faults = 0  # of machines or the network, since the last frames

    @property
    def run(self) -> str | None:
        """The run that this worker is at, or whose frames it still has."""
        return self.held.run if self._offer is not None or self.held.unacked else None

    @property
    def has_engine(self) -> bool:
        """True while an engine's process runs."""
        return self._engine is not None

    # ---------------------------------------------------------------------------------------------------- the driver

    def begin(self, offer: RunOffer) -> None:
        """Makes the engine ready for a run. It may be at it already, for an earlier driver or on an earlier connection."""
        if self._ending:
            return
        if self._offer is not None and self._offer.run == offer.run:
            if self._ready is not None:
                self._tell(self._ready)
            return
        if self._offer is not None:
            self.stop(StopRun(self._offer.run))
        self._stopping = None  # whoever ended a run does not wait any more
        if self._engine is not None and offer.run in self._ordered:
            self._engine.kill()  # a new start of the run tries its fatal rows again
            self._engine = None
        self.held.begin(offer.run)
        self._offer, self._suspects = offer, Suspects()
        log.info("run %s: making ready for it", offer.run[:8])
        self._engage(offer)

    def take(self, lease: Lease) -> None:
        """Takes a lease; the engine gets it once it is ready."""
        given = self.held.take(lease) if self._offer is not None else None
        if given is not None and self._serving and self._engine is not None:
            self._engine.send(given)

    def hand_on(self, message: Piece | NoParcel | PicturePart | NewestPolicy) -> None:
        """Hands the engine what is for it alone."""
        if self._offer is None or message.run != self._offer.run:
            return
        if isinstance(message, NewestPolicy):
            self._newest = message  # for engines that come later, too
        else:
            self._asked.pop(PictureWanted if isinstance(message, PicturePart) else PieceWanted, None)
        if self._engine is not None:
            self._engine.send(message)

    def ask_again(self) -> None:
        """Asks again for what the engine waits for: a connection has gone, and the answer perhaps with it."""
        for asked in list(self._asked.values()):
            self._tell(asked)

    def acknowledge(self, ack: Ack) -> None:
        """Forgets what the driver has."""
        self.held.acknowledge(ack)
        self._make_room()

    def stop(self, stop: StopRun) -> None:
        """Ends the work on the run between two steps; what is finished still comes, and then ``RunStopped``."""
        if stop.reason and (self._offer is not None or self.held.run != stop.run):  # else this worker has said it itself
            log.warning("the driver does not use this worker: %s", stop.reason)
        if self._offer is None or stop.run != self._offer.run or self._engine is None:
            if stop.run != self._stopping:
                self._tell(RunStopped(stop.run))
            return
        self._leave_run()
        self._stopping = stop.run
        self._engine.send(stop)

    def end(self) -> None:
        """Ends the engine's process between two steps; what is finished still comes."""
        self._ending = True
        if self._engine is not None:
            if self._offer is not None:
                self._engine.send(StopRun(self._offer.run))
            self._engine.end()

    def kill(self) -> None:
        """Ends the engine's process at once."""
        self._ending = True
        if self._engine is not None:
            self._engine.kill()

    # ---------------------------------------------------------------------------------------------------- the engine

    def hear(self, event: EngineSaid | EngineEnded) -> None:
        """Takes in what an engine says, or its end. One that this worker has given up is not heard."""
        if event.engine is not self._engine:
            event.engine.go_on()
        elif isinstance(event, EngineSaid):
            self._heard = monotonic()
            self._pass_on(event.message)
        else:
            self._engine, self._serving = None, False
            self._lose_engine(event)

    def look(self) -> None:
        """Reports an engine that says nothing. It is not ended: a lease may be large, and the rows in it are not to blame."""
        silent = monotonic() - self._heard
        if self._serving and not self.held.full and silent > SILENT_SECONDS:
            log.warning("the engine has said nothing for %.0f s and may hang; if it stays so, end this worker and start it again", silent)
            self._heard = monotonic()

    def _engage(self, offer: RunOffer) -> None:
        if self._engine is None:
            self._ordered = self._suspects.suspect_groups.keys() | self._suspects.fatal_rows.keys() | self._suspects.batch_halvings.keys()
            self._engine = self._start(self._suspects, self._inbox)
        self._serving, self._heard, self._asked = False, monotonic(), {}
        self._engine.send(offer)

    def _pass_on(self, message: Message) -> None:
        match message:
            case Ready():
                self._serve(message)
            case Begun() | Frames() | LeaseDone():
                for told in self.held.relay(message):
                    self._tell(told)
                if isinstance(message, Frames):
                    self._faults = 0
                    self._make_room()
            case RunRefused(run, reasons):
                self._give_up(message, f"run {run[:8]} is not for this worker: {one_a_line(reasons)}")
            case RunFailed(run, _, text):
                self._give_up(message, f"run {run[:8]} cannot go on here: {text}")
            case RunStopped(run):
                if run == self._stopping:
                    self._end_stopping()
            case PieceWanted() | PictureWanted():
                self._asked[type(message)] = message
                self._tell(message)
            case PolicyRefused():
                self.held.drop_policy(message.policy)
                self._tell(message)
            case NoRoom():
                for told in self.held.give_up(message):
                    self._tell(told)
            case Figures() | PictureTaken() | PolicyLoaded() | Unfit():
                self._tell(message)
            case _:
                log.debug("the engine sent a message that is not an engine's: %s", type(message).__name__)

    def _serve(self, ready: Ready) -> None:
        """Gives a new engine what an earlier one left, and what has come meanwhile."""
        if self._offer is None or ready.run != self._offer.run or self._engine is None:
            return
        first, self._serving = self._ready is None, True
        if first:
            self._ready = ready
            log.info("run %s: ready%s", ready.run[:8], _model_of(ready))
            self._tell(ready)
        if self._newest is not None:
            self._engine.send(self._newest)
        groups, fatal = self._suspects.suspect_groups.get(ready.run, []), self._suspects.fatal_rows.get(ready.run, {})
        again, done = self.held.give_again(Orders(suspect_groups=tuple(groups), fatal_rows=fatal), self._suspects.frozen)
        for message in done:
            self._tell(message)
        for lease in again:
            self._engine.send(lease)

    def _make_room(self) -> None:
        if self._engine is not None and not self.held.full:
            self._engine.go_on()

    def _lose_engine(self, ended: EngineEnded) -> None:
        """Starts the engine again after a death, if it was at a run."""
        offer, code = self._offer, ended.code
        self._end_stopping()
        if self._ending:
            return
        if offer is None:
            log.warning("the engine's process has ended (code %d) while it had no run: the next run starts another", code)
            return
        try:
            if ended.fault:
                cause, follows = self._note_fault(ended.fault)
            elif -code not in DEATHS:
                raise ModelError(f"{ended.who} ended by itself, with code {code}, in the middle of a run")
            else:
                cause, follows = self._suspects.record_death(-code)
        except BulkError as error:
            failed = RunFailed(offer.run, type(error).__name__, str(error))
            self._give_up(failed, f"run {offer.run[:8]} cannot go on here: {error}")
            return
        log.info("%s: %s", cause, follows)  # the driver warns of it
        self._tell(EngineDied(offer.run, cause, follows))
        self._engage(offer)

    def _note_fault(self, fault: str) -> tuple[str, str]:
        """Counts a fault of a machine or the network: no row is to blame. Raises ModelError where the group does not come back."""
        self._suspects.receive({"rows": []})
        self._faults += 1
        if self._faults > FAULTS:
            raise ModelError(f"{fault}; it was so {self._faults} times with no finished row between: look at the machines of this group")
        return fault, "its processes start again"

    def _give_up(self, message: RunRefused | RunFailed, text: str) -> None:
        """Reports that nothing comes of the run here. The worker stays for the next one."""
        if self._offer is None or message.run != self._offer.run:
            return
        log.info("%s", text)  # the driver warns of it
        self._tell(message)
        self._leave_run()

    def _end_stopping(self) -> None:
        if self._stopping is not None:
            self._tell(RunStopped(self._stopping))
            self._stopping = None

    def _leave_run(self) -> None:
        self.held.stop()
        self._offer, self._ready, self._serving, self._asked, self._newest = None, None, False, {}, None


def _model_of(ready: Ready) -> str:
    """Returns the model's name behind a colon, empty where the engine tells none."""
    facts = json.loads(ready.facts)
    model = facts.get("model") if isinstance(facts, dict) else None
    return f": {model}" if isinstance(model, str) else ""
