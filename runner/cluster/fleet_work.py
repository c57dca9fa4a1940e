"""The work of a session over a cluster. The connections stay open from run to run, so that workers keep their models.

Does not know how messages travel; ``Fleet`` does.
"""

from collections.abc import Callable

from ...configs.cluster import ClusterConfig
from ...configs.rollout import RolloutConfig
from ..core.progress import Progress
from ..models.checkpoint import checkpoint_fingerprints
from ..pipeline.model_work import OpenRun
from ..policies.policy_source import Offer
from ..policies.policy_store import PolicyStore
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
        _keep_policy(run)
        run.require_sound_rows()
        if self._fleet is None:
            self._fleet = self._open_fleet()
        return Driver(self._fleet, self._hellos, self._settings, run).run()

    def close(self, dismiss: bool) -> None:
        """Ends the connections. dismiss: workers end, too."""
        if self._fleet is not None:
            self._fleet.end(dismiss)
            self._fleet = None


def _keep_policy(run: OpenRun) -> None:
    """Keeps the policy of a rollout job, which never changes, in the run directory, as the records name it."""
    if not isinstance(run.config, RolloutConfig):
        return
    store = PolicyStore(run.run_dir.policies, checkpoint_fingerprints(run.spec.checkpoint)["model.weights"])
    if run.spec.checkpoint.adapter is None:
        store.keep_base()
    else:
        with store.keeping(Offer(0, run.spec.checkpoint.adapter)):
            pass
