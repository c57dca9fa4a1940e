"""The agent of ``mlx-bulk worker``: stays between drivers that come and go and engines that die.

One thread acts, on one queue of events: messages of the driver and the engine, the end of either, and signals.
"""

import logging
import signal
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from ...runner.cluster.messages import Ack, Dismiss, FromWorker, Hello, Lease, Message, NewestPolicy, RunOffer, StopRun
from ...runner.parcels.file_messages import NoParcel, PicturePart, Piece
from .driver_line import DriverEnd, DriverFound, DriverLine, DriverLost, DriverRefused, DriverSaid
from .engine_process import EngineEnded, EngineSaid
from .run_work import RunWork, Starter

log = logging.getLogger("mlx_bulk")

ENGINE_SECONDS = 4.0  # for the engine to end between two steps and to hand over what is finished
ACK_SECONDS = 3.0  # for the driver to ack it
LOOK_SECONDS = 0.5
NO_DRIVER = 75  # the exit code of a worker whose driver does not come back: EX_TEMPFAIL


@dataclass(slots=True, frozen=True)
class Signalled:
    """This process got a signal."""

    number: int


@dataclass(slots=True, frozen=True)
class Stay:
    """When a worker leaves by itself. once: with its driver's run. wait: after so many seconds without any driver, None for never."""

    once: bool = False
    wait: float | None = None


class Agent:
    """A worker. hello: what it tells each driver first, without what it works on. inbox: gets signals as ``Signalled``."""

    def __init__(self, link: DriverEnd, hello: Hello, start: Starter, stay: Stay, inbox: "SimpleQueue[Any]"):
        self._inbox, self._hello, self._stay = inbox, hello, stay
        self._work = RunWork(start, inbox, self._tell)
        self._online = False
        self._alone_since = monotonic()
        self._stopped = False  # the driver has ended its run
        self._code: int | None = None  # the agent is leaving
        self._deadline = 0.0
        self._line = DriverLine(link, inbox)

    def run(self) -> int:
        """Works until it is dismissed, a signal comes, or no driver does. Returns the exit code. Raises BulkError where refused."""
        try:
            while not self._is_over():
                try:
                    event = self._inbox.get(timeout=LOOK_SECONDS)
                except Empty:
                    event = None
                self._take(event)
                self._look()
        finally:
            self._line.close()
            self._work.kill()
        return self._code or 0

    def _take(self, event: object) -> None:
        match event:
            case DriverFound():
                self._greet()
            case DriverSaid(message):
                self._obey(message)
            case DriverLost():
                self._lose_driver()
            case DriverRefused(error):
                raise error
            case EngineSaid() | EngineEnded():
                self._work.hear(event)
            case Signalled(number):
                self._leave(128 + number)
            case _:
                pass

    def _tell(self, message: FromWorker) -> None:
        """Sends a message to the driver; without one it is dropped. What must not get lost is in ``HeldLeases``."""
        if self._online:
            self._line.send(message)

    def _greet(self) -> None:
        held = self._work.held
        self._online = True
        log.info("joined the driver as %s", self._hello.worker)
        self._tell(replace(self._hello, run=self._work.run, leases=held.unfinished))
        for message in (*held.admissions, *held.outbox):
            self._tell(message)
        self._work.ask_again()

    def _obey(self, message: Message) -> None:
        match message:
            case RunOffer():
                self._stopped = False
                self._work.begin(message)
            case Lease():
                self._work.take(message)
            case Piece() | NoParcel() | PicturePart() | NewestPolicy():
                self._work.hand_on(message)
            case Ack():
                self._work.acknowledge(message)
            case StopRun():
                self._stopped = True
                self._work.stop(message)
            case Dismiss() if self._stay.once:
                self._leave(0)
            case Dismiss():
                self._stopped = True
                log.info("the run has ended: waiting for the next one")
            case _:
                log.debug("the driver sent a message that is not a driver's: %s", type(message).__name__)

    def _lose_driver(self) -> None:
        self._online, self._alone_since = False, monotonic()
        if self._code is not None:
            return
        if self._stopped and self._stay.once:
            self._leave(0)
            return
        kept = "" if self._work.run is None or self._stopped else "; its engine goes on, and finished rows are sent when the driver is back"
        log.warning("the connection to the driver is lost: waiting for it%s", kept)
        self._line.go_on()

    def _leave(self, code: int) -> None:
        """Ends the engine between two steps, and then this agent; at the second signal at once."""
        if self._code is not None:
            self._deadline = 0.0
            return
        self._code, self._deadline = code, monotonic() + ENGINE_SECONDS + ACK_SECONDS
        if code > 128:
            log.warning("%s: sending finished rows and leaving (again: leave at once)", signal.Signals(code - 128).name)
        self._work.end()

    def _is_over(self) -> bool:
        if self._code is None:
            return False
        ends = self._work.has_engine and monotonic() < self._deadline - ACK_SECONDS
        sends = self._work.held.unacked and self._online and monotonic() < self._deadline
        return not (ends or sends)

    def _look(self) -> None:
        """Looks at the clock: a worker without a driver may leave, and an engine that says nothing is reported."""
        if self._code is not None:
            return
        self._work.look()
        wait = self._stay.wait
        if wait is not None and not self._online and monotonic() > self._alone_since + wait:
            log.warning("no driver for %g s: this worker leaves", wait)
            self._leave(NO_DRIVER)
