"""Keeps loaded models for the next run of the same process (a sweep's next cell).

Two runs share a model where folder, adapter and precision are the same, and quantized weights are held alike. Models that a run does
not need are dropped before anything is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...configs.schema import ModelConfig
from ..core.errors import OutOfRoom
from ..core.images import ImageTable
from ..core.units import size_as_text
from ..layers.kernel_injection import restore
from ..pooling.spec import PoolingSpec
from ..ranks.ranks import ALONE, Ranks
from .checkpoint import Checkpoint
from .loader import LanguageModel, load_model, outline, size
from .pooling_loader import load_pooling_model, outline_pooling_model, pooling_size

Key = tuple[str, str, str, bool, bool | None, PoolingSpec | None, bool, bool]


class ModelChoice(NamedTuple):
    """A model to load.

    pooling: what becomes of its hidden states; None for a model that gives logits of the next token. images: the pictures that it is to
    read; None for rows of text alone.
    """

    config: ModelConfig
    checkpoint: Checkpoint
    pooling: PoolingSpec | None = None
    images: ImageTable | None = None


@dataclass(slots=True)
class ModelPool:
    """The models in memory, by checkpoint, adapter, and how their weights are held. ranks: the processes that share them.

    folder: below it lie models that are not where another machine has them; None for nowhere.
    """

    ranks: Ranks = ALONE
    folder: Path | None = None
    _held: dict[Key, LanguageModel] = field(default_factory=dict[Key, LanguageModel])

    def get(self, wanted: Sequence[ModelChoice], memory: int) -> list[LanguageModel]:
        """Returns the models ``wanted``, in that order, and loads those that are not here; for ``memory`` see ``memory_shares``.

        Raises OutOfRoom, before anything is loaded, where their files alone are larger; ModelError where one cannot be loaded, here or
        on another rank.
        """
        found: list[LanguageModel] = []
        self.ranks.jointly(lambda: found.extend(self._found(wanted, memory)))
        return found

    def _found(self, wanted: Sequence[ModelChoice], memory: int) -> list[LanguageModel]:
        _refuse_too_large([choice.checkpoint for choice in wanted], memory)
        left = memory_shares(wanted, memory)
        keys = [_key(each, dequantizes(each, room)) for each, room in zip(wanted, left, strict=True)]
        self._held = {key: model for key, model in self._held.items() if key in keys}
        for key, choice, room, beside in zip(keys, wanted, left, later_sizes(wanted, left), strict=True):
            if key not in self._held:
                for other in self._held.values():
                    if other.adapters is not None:
                        other.adapters.note_anew()
                self._held[key] = _load(choice, room, beside, self.ranks)
            elif (adapters := self._held[key].adapters) is not None:
                adapters.back()  # an earlier run may have put others on
        return [self._held[key] for key in keys]

    def release(self) -> None:
        """Lets go of all models, and puts mlx-lm's own layers back in its model files: the caller may train a network of the same files."""
        for model in self._held.values():
            if model.substitutes:
                restore(model.called_network)
        self._held.clear()


def memory_shares(wanted: Sequence[ModelChoice], memory: int) -> list[int]:
    """Returns the bytes that each of the models may take: what those before it leave of ``memory``.

    Follows from the checkpoints alone, not from what is loaded: whether a model is dequantized must not depend on that. Packed copies are
    left out, as only some processors take them.
    """
    left: list[int] = []
    for number, choice in enumerate(wanted, start=1):
        left.append(memory)
        if number < len(wanted):
            memory -= _size(choice, memory)[0]
    return left


def later_sizes(wanted: Sequence[ModelChoice], left: Sequence[int]) -> list[int]:
    """Returns for each model the bytes of those after it, each loaded into what is ``left`` for it."""
    sizes = [_size(choice, room)[0] for choice, room in zip(wanted[1:], left[1:], strict=True)]
    return [sum(sizes[number:]) for number in range(len(wanted))]


def dequantizes(wanted: ModelChoice, room: int) -> bool | None:
    """Returns whether loading a model into ``room`` bytes dequantizes its weights, which changes bits; None if none are quantized."""
    return _size(wanted, room)[1] if wanted.checkpoint.quantized else None


def outlined(choice: ModelChoice, room: int, beside: int) -> LanguageModel:
    """Returns a model without its weights, see ``loader.outline``."""
    if choice.pooling is None:
        return outline(choice.config, choice.checkpoint, room, pictures=choice.images is not None, beside=beside)
    return outline_pooling_model(choice.config, choice.checkpoint, choice.pooling, room, pictures=choice.images is not None, beside=beside)


def _load(choice: ModelChoice, room: int, beside: int, ranks: Ranks) -> LanguageModel:
    if choice.pooling is None:
        return load_model(choice.config, choice.checkpoint, room, pictures=choice.images is not None, ranks=ranks, beside=beside)
    return load_pooling_model(choice.config, choice.checkpoint, choice.pooling, room, pictures=choice.images is not None, beside=beside)


def _size(choice: ModelChoice, room: int) -> tuple[int, bool | None]:
    if choice.pooling is None:
        return size(choice.config, choice.checkpoint, room, pictures=choice.images is not None)
    return pooling_size(choice.config, choice.checkpoint, choice.pooling, room, pictures=choice.images is not None)


def _key(wanted: ModelChoice, whole: bool | None) -> Key:
    config, checkpoint, pooling, images = wanted
    folder, adapter, pictures = str(checkpoint.folder.resolve()), str(checkpoint.adapter), images is not None
    unchecked = pictures and config.unchecked_images
    return folder, adapter, config.dtype, config.trust_remote_code, whole, pooling, pictures, unchecked


def _refuse_too_large(checkpoints: list[Checkpoint], memory: int) -> None:
    sizes = [sum(file.stat().st_size for file in checkpoint.folder.glob("*.safetensors")) for checkpoint in checkpoints]
    if (need := sum(sizes)) > memory:
        listed = " and ".join(f"{checkpoint.folder} {size_as_text(size)}" for checkpoint, size in zip(checkpoints, sizes, strict=True))
        one = f"of {checkpoints[0].folder} take at least {size_as_text(need)}"
        weights = one if len(sizes) == 1 else f"take at least {size_as_text(need)} ({listed})"
        cure = "raise batch.memory, or use a smaller or quantized model"
        raise OutOfRoom(f"the weights {weights}, batch.memory leaves {size_as_text(memory)}; {cure}")
