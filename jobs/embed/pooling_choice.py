"""How hidden states become a row's vector: as the model's folder says, changed by what the config sets."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from ...configs.embed import EmbedSettings
from ...configs.errors import ConfigError
from ...runner.images.tower_processor import has_two_towers
from ...runner.pooling.sentence_folder import SentenceFolder, pooling_advice
from ...runner.pooling.spec import EmbeddingHead, Normalize, PoolingMode


def chosen_head(settings: EmbedSettings, folder: SentenceFolder, config: dict[str, Any]) -> EmbeddingHead:
    """Returns the head. Raises ConfigError where neither the folder nor the settings say how to pool.

    Where the numbers of a vector are cut and the model gives vectors of length 1, they get it again. ``normalize: false`` leaves out
    what comes last: of vectors that are cut that step alone (sentence-transformers' ``truncate_dim``), else the model's own.
    """
    head = folder.head
    if settings.pooling is not None and has_two_towers(config):
        raise ConfigError("embed.pooling: a model with two towers pools by itself; leave it out (embed.normalize: true gives unit vectors)")
    if settings.pooling is not None:
        head = replace(head or EmbeddingHead(()), modes=(settings.pooling,))
    if head is None or not head.modes:
        found = _without_pooling(folder.folder, folder.modules)
        raise ConfigError(f"embed.pooling: {found}; set it to one of {MODES}{pooling_advice(config)}")
    unit = any(isinstance(layer, Normalize) for layer in head.layers)
    if settings.normalize is False and settings.dimensions is None:
        head = replace(head, layers=tuple(layer for layer in head.layers if not isinstance(layer, Normalize)))
    cut = settings.dimensions
    wanted = settings.normalize is True or (settings.normalize is None and cut is not None and unit)
    return replace(head, cut=head.cut if cut is None else cut, normalize=wanted)


MODES = ", ".join(get_args(PoolingMode))


def _without_pooling(folder: Path, modules: tuple[str, ...]) -> str:
    if not modules:
        return f"{folder} holds no modules.json, so nothing says how its hidden states become one vector"
    if "Pooling" in modules:
        return f"modules.json of {folder} names Pooling, whose config.json is not there (conversions to MLX leave it out)"
    return f"modules.json of {folder} names no Pooling module, but {', '.join(modules)}"
