"""A process joins its group: mlx finds the other ranks, and the work begins. The ranks compare what decides bits."""

from collections.abc import Callable
from importlib.metadata import version

import mlx.core as mx

from ...kernels import backend
from ..core.errors import ModelError
from .ranks import Ranks
from .stall_watch import StallWatch, ending_where_ranks_are_lost

_PACKAGES = ("mlx-bulk", "mlx", "mlx-lm", "transformers")


def joined_group(by: str, stall_seconds: float, serve: Callable[[Ranks], None]) -> None:
    """Joins the group that the environment names, by mlx's backend ``by``, and calls ``serve`` in it.

    The process ends by itself where another rank is lost, or nothing has been exchanged for ``stall_seconds``.
    """
    watch = StallWatch(stall_seconds)
    with ending_where_ranks_are_lost():
        ranks = Ranks(mx.distributed.init(strict=True, backend=by))
        watch.ranks = ranks
        serve(ranks)


def require_alike(ranks: Ranks) -> None:
    """Raises ModelError where machines differ: ranks that round otherwise would part."""
    facts = {**{package: version(package) for package in _PACKAGES}, "device": backend.device_name()}
    first, *others = ranks.gather(facts)
    differences = [
        f"{name}: {ranks.name_of(0)} has {first[name]}, {ranks.name_of(rank)} {other[name]}"
        for rank, other in enumerate(others, start=1)
        for name in first
        if other[name] != first[name]
    ]
    if differences:
        raise ModelError(f"the machines of a group must be alike: {'; '.join(differences)}")
