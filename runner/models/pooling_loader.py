"""Loads a checkpoint as a pooling model: its body and its head, in the precision that suits the device.

A body is an encoder of ours, or a language model of mlx-lm's without its LM head. A generative reranker keeps that head.
"""

from dataclasses import replace
from typing import Any

from ...configs.schema import ModelConfig
from ...kernels import backend
from ..core.errors import ModelError
from ..pooling.spec import PoolingSpec, TokenHead
from .checkpoint import Checkpoint
from .loader import Classes, LanguageModel, load_model, outline, size

# Model types with code of their own for attention both ways -> those that have the same layers.
SAME_LAYERS = {"llama_bidirec": "llama"}


def load_pooling_model(
    config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int, *, pictures: bool = False, beside: int = 0
) -> LanguageModel:
    """Loads the weights as ``loader.load_model`` does. Raises ModelError where body or head cannot be loaded."""
    mx = backend.load_mlx()
    from .encoder_loader import load_encoder

    if _is_encoder(checkpoint):
        model = _pooling(load_encoder(config, checkpoint, memory, pictures=pictures), pooling)
    else:
        model = _pooling(load_model(config, checkpoint, memory, _classes(checkpoint, pooling), pictures=pictures, beside=beside), pooling)
    mx.eval(model.network.head.parameters())
    if not _is_encoder(checkpoint):
        model.network.body.check()
    return model


def outline_pooling_model(
    config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int, *, pictures: bool = False, beside: int = 0
) -> LanguageModel:
    """Returns the model as ``load_pooling_model`` would, without its weights. Raises ModelError as that does."""
    backend.load_mlx()
    from .encoder_loader import outline_encoder

    if _is_encoder(checkpoint):
        return _pooling(outline_encoder(config, checkpoint, memory, pictures=pictures), pooling)
    return _pooling(outline(config, checkpoint, memory, _classes(checkpoint, pooling), pictures=pictures, beside=beside), pooling)


def pooling_size(
    config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int, *, pictures: bool = False
) -> tuple[int, bool | None]:
    """Returns the bytes of the weights, and whether they would be dequantized; as ``loader.size``."""
    backend.load_mlx()
    from .encoder_loader import encoder_size

    if _is_encoder(checkpoint):
        return encoder_size(config, checkpoint, memory, pictures=pictures)
    return size(config, checkpoint, memory, _classes(checkpoint, pooling), pictures=pictures)


def _is_encoder(checkpoint: Checkpoint) -> bool:
    from ..encoders.registry import encoder_class

    return encoder_class(checkpoint.config) is not None


def _classes(checkpoint: Checkpoint, pooling: PoolingSpec) -> Classes | None:
    """Returns what mlx-lm makes the network of; None for a whole language model, which a generative reranker is."""
    from ..encoders.registry import ENCODERS
    from .body_classes import body_classes

    def classes(config: dict[str, Any]) -> tuple[Any, Any]:
        kind = config.get("model_type")
        try:
            return body_classes(config | {"model_type": SAME_LAYERS.get(str(kind), kind)})
        except ValueError as error:
            found = f"{kind} is neither a model type of mlx-lm's nor one of the encoders {', '.join(sorted(ENCODERS))}"
            cure = "a newer mlx-lm may have it (pip install -U mlx-lm)"
            raise ModelError(f"model.path: {checkpoint.folder} cannot be loaded: {found}; {cure}") from error

    return None if isinstance(pooling.head, TokenHead) else classes


def _pooling(model: LanguageModel, pooling: PoolingSpec) -> LanguageModel:
    """Returns the model with its head, whose weights are not read yet."""
    from ..encoders.encoder import Encoder
    from ..encoders.text_towers import TextTower
    from ..pooling.decoder_body import DecoderBody
    from ..pooling.head_network import head_network
    from ..pooling.vectors import PoolingNetwork
    from ..vision.two_towers import TwoTowers

    path = model.checkpoint.folder
    try:
        body: Any = model.network if isinstance(model.network, Encoder) else DecoderBody(model.network, model.checkpoint.config)
        if isinstance(body, TextTower) and model.features is not None:
            body = TwoTowers(body, model.features)
        return replace(model, network=PoolingNetwork(body, head_network(pooling, body)), pooling=pooling)
    except ValueError as error:  # no body is found by its name
        raise ModelError(f"model.path: {path} is no pooling model that is known: {error}") from error
