"""The models in memory: those that a run needs, kept for the next run of the same process (a sweep's next cell).

Two runs share a model where folder, adapter and precision are the same. What a run does not need is dropped before anything
is loaded.
"""

from dataclasses import dataclass, field

from ..configs.schema import ModelConfig
from .model import Checkpoint, Model, load

Key = tuple[str, str, str, bool]


@dataclass(slots=True)
class Models:
    """What is loaded, by where it came from and how."""

    _held: dict[Key, Model] = field(default_factory=dict[Key, Model])

    def get(self, wanted: list[tuple[ModelConfig, Checkpoint]], memory: int) -> list[Model]:
        """The models ``wanted``, in that order, of which those that are not here are loaded into ``memory`` bytes less the others.

        Raises ModelError where one cannot be loaded.
        """
        keys = [_key(config, checkpoint) for config, checkpoint in wanted]
        self._held = {key: model for key, model in self._held.items() if key in keys}
        for key, (config, checkpoint) in zip(keys, wanted, strict=True):
            if key not in self._held:
                left = memory - sum(model.weight_bytes for model in self._held.values())
                self._held[key] = load(config, checkpoint, left)
        return [self._held[key] for key in keys]


def _key(config: ModelConfig, checkpoint: Checkpoint) -> Key:
    return str(checkpoint.folder.resolve()), str(checkpoint.adapter), config.dtype, config.trust_remote_code
