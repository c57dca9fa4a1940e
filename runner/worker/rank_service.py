"""The main loop of a group's other ranks: they do what the first one, which has the connection to the agent, does.

Outcomes are the first rank's; nobody reads them here.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from ...configs.errors import BulkError
from ..cluster.description import RunDescription
from ..cluster.messages import RunOffer
from ..models.model_pool import ModelPool
from ..pipeline.job import Kind
from ..ranks.lockstep import SharedInput
from ..ranks.ranks import Ranks
from .loaded_run import DifferentResults, loaded_run

log = logging.getLogger("mlx_bulk")


def serve_rank(kinds: Mapping[str, Kind], ranks: Ranks, models: Path | None = None) -> None:
    """Takes part in the runs of the first rank, until it ends. kinds: the kinds of job by name. models: see ``ModelPool.folder``."""
    pool = ModelPool(ranks, models)
    while (offer := ranks.wait_for(_no_offer)) is not None:
        if ranks.flag(0):
            with TemporaryDirectory(prefix="mlx-bulk-worker-") as scratch:
                _work(offer, kinds, pool, Path(scratch))


def _work(offer: RunOffer, kinds: Mapping[str, Kind], pool: ModelPool, scratch: Path) -> None:
    """Does the part of this rank in a run, until the first one leaves it."""
    ranks, described = pool.ranks, RunDescription.of_offer(offer)
    try:
        engine = loaded_run(described, kinds, pool, scratch, ranks.share(0)).engine(scratch, described.layout)
    except (BulkError, DifferentResults) as error:  # raised on all ranks: the first one reports it
        log.debug("run %s is not for this group: %s", offer.run[:8], error)
        return
    while ranks.wait_for(_no_lease):
        shared = SharedInput(ranks)
        for _ in engine.run(shared.next_window, shared.stopped):
            pass


def _no_offer() -> RunOffer | None:
    return None


def _no_lease() -> bool:
    return False
