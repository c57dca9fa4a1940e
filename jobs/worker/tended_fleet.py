"""A fleet some of whose workers were started by this process: it starts those again that die."""

from ...runner.cluster.interface import Event, Fleet, Joined, Left, Told
from ...runner.cluster.messages import Frames, ToWorker
from .local_workers import LocalWorkers


class TendedFleet:
    """Fulfils ``Fleet``: that of ``fleet``, with an eye on the workers of this machine."""

    def __init__(self, fleet: Fleet, local: LocalWorkers):
        self._fleet, self._local = fleet, local

    def workers(self) -> list[str]:
        """See ``Fleet``."""
        return self._fleet.workers()

    def send(self, worker: str, message: ToWorker) -> None:
        """See ``Fleet``."""
        self._fleet.send(worker, message)

    def events(self, timeout: float) -> list[Event]:
        """See ``Fleet``. Looks after the workers of this machine, too."""
        events = self._fleet.events(timeout)
        for event in events:
            if isinstance(event, Joined):
                self._local.note_joined(event.worker)
            elif isinstance(event, Left) and event.in_order:
                self._local.note_left(event.worker)
            elif isinstance(event, Told) and isinstance(event.message, Frames) and event.message.resolved:
                self._local.note_row(event.worker)
        self._local.tend()
        return events

    def end(self, dismiss: bool) -> None:
        """See ``Fleet``."""
        self._fleet.end(dismiss)
