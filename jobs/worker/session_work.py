"""What does the rows of a run that a config describes: a model in this process, or workers, some of which may be started here.

What loads mlx, or serves workers alone, is imported by the run that needs it, as all of this room starts at once.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...configs.cluster import ClusterConfig
from .local_workers import LocalWorkers

if TYPE_CHECKING:
    from ...runner.cluster.interface import Fleet
    from ...runner.pipeline.model_work import SessionWork

log = logging.getLogger("mlx_bulk")

_LOOPBACK = "127.0.0.1:0"  # any free port, for workers of this machine alone


@contextmanager
def session_work(cluster: ClusterConfig | None, deterministic: bool) -> "Generator[SessionWork]":
    """Surrounds the runs of a command; yields what does their rows. Models stay in memory from run to run, and workers connected.

    deterministic: of a run; each worker started here then has as many threads as this process, since bits depend on them.
    """
    from ...kernels import backend

    if cluster is None:
        from ...runner.models.model_pool import ModelPool
        from ...runner.pipeline.model_work import ModelWork

        pool = ModelPool()
        try:
            yield ModelWork(pool)
        finally:
            pool.release()
        return
    from ...runner.cluster.fleet_work import ClusterWork

    opened = _OpenCluster(cluster, backend.threads() if deterministic else None)
    work = ClusterWork(opened.fleet, cluster)
    try:
        yield work
    finally:
        work.close(dismiss=True)
        opened.close()


class _OpenCluster:
    """The connections of a cluster, and the workers that were started on this machine. Raises ConfigError without the extra cluster."""

    def __init__(self, settings: ClusterConfig, threads: int | None):
        from ...runner.network.dask_fleet import DaskFleet  # what is missing for it is said before a run directory is made

        self._settings, self._threads, self._listen = settings, threads, DaskFleet
        self._workers: LocalWorkers | None = None

    def fleet(self) -> "Fleet":
        """Listens for workers, and starts those of this machine."""
        from ...runner.cluster.interface import ORPHAN_SECONDS
        from ...runner.network.shared_secret import new_secret
        from .tended_fleet import TendedFleet

        settings = self._settings
        secret = new_secret() if settings.listen is None and settings.tls is None else None
        fleet = self._listen(settings.listen or _LOOPBACK, settings.tls, settings.lost_after, secret)
        if settings.listen is not None:
            log.info("workers join with: mlx-bulk worker %s%s", fleet.address, "" if settings.tls is None else " --tls FOLDER")
        if settings.workers:
            options = ("--log-level", _log_level(), *(() if settings.tls is None else ("--tls", settings.tls)))
            wait = min(settings.wait, ORPHAN_SECONDS) if settings.listen is None else settings.wait
            self._workers = LocalWorkers(settings.workers, fleet.address, wait, self._threads, options, secret)
            return TendedFleet(fleet, self._workers)
        return fleet

    def close(self) -> None:
        """Waits for the workers of this machine to end."""
        if self._workers is not None:
            self._workers.end()


def _log_level() -> str:
    """Returns the log level of workers that log to this process's stderr: they leave to it what it says itself."""
    level = log.getEffectiveLevel()
    return logging.getLevelName(level if level <= logging.DEBUG else max(level, logging.WARNING)).lower()
