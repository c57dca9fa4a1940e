"""The work of a session over a cluster. The connections stay open from run to run, so that workers keep their models.

Does not know how messages travel; ``Fleet`` does.
"""

from collections.abc import Callable

from ...configs.cluster import ClusterConfig
from ..core.progress import Progress
from ..pipeline.model_work import OpenRun
from .driver import Driver
from .interface import Fleet, Joined


class ClusterWork:
    """Does the rows of runs on workers. fleet: opens the connections, at the first run; ``close`` ends them."""

    def __init__(self, fleet: Callable[[], Fleet], settings: ClusterConfig):
        self._open_fleet, self._settings = fleet, settings
        self._fleet: Fleet | None = None
        self._hellos: dict[str, Joined] = {}

    def run(self, run: OpenRun) -> tuple[Progress, bool]:
        """Does what is left of a run; see ``SessionWork``."""
        run.require_sound_rows()
        if self._fleet is None:
            self._fleet = self._open_fleet()
        return Driver(self._fleet, self._hellos, self._settings, run).run()

    def close(self, dismiss: bool) -> None:
        """Ends the connections. dismiss: workers end, too."""
        if self._fleet is not None:
            self._fleet.end(dismiss)
            self._fleet = None
