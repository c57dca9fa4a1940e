"""The models in memory: those that a run needs, kept for the next run of the same process (a sweep's next cell).

Two runs share a model where folder, adapter and precision are the same. What a run does not need is dropped before anything
is loaded.
"""

from dataclasses import dataclass, field

from ..configs.schema import ModelConfig
from .errors import OutOfRoom
from .model import Checkpoint, Model, load

Key = tuple[str, str, str, bool]


@dataclass(slots=True)
class Models:
    """What is loaded, by where it came from and how."""

    _held: dict[Key, Model] = field(default_factory=dict[Key, Model])

    def get(self, wanted: list[tuple[ModelConfig, Checkpoint]], memory: int) -> list[Model]:
        """The models ``wanted``, in that order, of which those that are not here are loaded into ``memory`` bytes less the others.

        Raises OutOfRoom where their files alone are larger, before anything is loaded; ModelError where one cannot be loaded.
        """
        _refuse_too_large([checkpoint for _, checkpoint in wanted], memory)
        keys = [_key(config, checkpoint) for config, checkpoint in wanted]
        self._held = {key: model for key, model in self._held.items() if key in keys}
        for key, (config, checkpoint) in zip(keys, wanted, strict=True):
            if key not in self._held:
                left = memory - sum(model.weight_bytes for model in self._held.values())
                self._held[key] = load(config, checkpoint, left)
        return [self._held[key] for key in keys]


def _key(config: ModelConfig, checkpoint: Checkpoint) -> Key:
    return str(checkpoint.folder.resolve()), str(checkpoint.adapter), config.dtype, config.trust_remote_code


def _refuse_too_large(checkpoints: list[Checkpoint], memory: int) -> None:
    sizes = [sum(file.stat().st_size for file in checkpoint.folder.glob("*.safetensors")) for checkpoint in checkpoints]
    if (need := sum(sizes)) > memory:
        listed = " and ".join(f"{checkpoint.folder} {size / 1e9:.1f} GB" for checkpoint, size in zip(checkpoints, sizes, strict=True))
        cure = "raise batch.memory, or use a smaller or quantized model"
        raise OutOfRoom(f"the weights take at least {need / 1e9:.1f} GB ({listed}), batch.memory leaves {memory / 1e9:.1f} GB; {cure}")
