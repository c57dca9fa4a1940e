"""A network split among ranks, by mlx-lm's own code for its architecture: each rank reads and holds its part of the weights.

    pipeline   rank 1 has the first layers, rank 0 the last; hidden states travel once a step: the same bits as one process
    tensor     each rank has a part of each layer; sums of all ranks after each: other rounding, and a layer waits for the network

Pipeline is taken where the architecture has both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import ModelError
from .ranks import ALONE, Ranks

PIPELINE, TENSOR = "pipeline", "tensor"


@dataclass(slots=True, frozen=True)
class ModelSplit:
    """How a network was split among ``ranks``. way: pipeline or tensor, None for one that is whole.

    whole: the network as it was before, with weights that are not read, where it was split.
    """

    ranks: Ranks = ALONE
    way: str | None = None
    whole: Any = None

    def __str__(self) -> str:
        return f"{self.way}×{self.ranks.size}"


WHOLE = ModelSplit()


def split_network(network: Any, ranks: Ranks, name: str, opened: Callable[[], Any]) -> ModelSplit:
    """Leaves a lazily opened network the part of this rank, and returns how it was split. ``opened`` makes it once more.

    name: of the model, for messages. Raises ModelError where its architecture cannot be split, or not in so many parts.
    """
    if not ranks.several:
        return WHOLE
    body: Any = getattr(network, "model", None)
    try:
        if hasattr(body, PIPELINE):
            layers = len(body.layers)
            if layers < ranks.size:
                raise ModelError(f"model.path: {name} has {layers} layers, too few for {ranks.size} ranks; use a smaller group")
            body.pipeline(ranks.group)
            return ModelSplit(ranks, PIPELINE, opened())
        if hasattr(network, "shard"):
            _require_divisible(network, ranks.size, name)
            network.shard(ranks.group)
            return ModelSplit(ranks, TENSOR, opened())
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"model.path: {name} cannot be split among {ranks.size} ranks: {error}") from error
    kind = type(network).__module__.rpartition(".")[2]
    raise ModelError(
        f"model.path: {name} cannot be split among {ranks.size} ranks: mlx-lm has no way to split its architecture ({kind}); run it with "
        "a worker without --group, or use a model of another architecture (docs/cluster.md lists them)"
    )


def _require_divisible(network: Any, size: int, name: str) -> None:
    """Raises ModelError where attention heads do not divide among the ranks; mlx-lm would round, and lose some."""
    arguments = getattr(network, "args", None)
    for setting in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(arguments, setting, None)
        if isinstance(heads, int) and heads % size:
            raise ModelError(
                f"model.path: {name} has {setting} {heads}, which {size} ranks cannot divide; use a group whose size divides it"
            )
