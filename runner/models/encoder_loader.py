"""Loads the weights of an encoder of ours (BERT and its like), in the precision that suits the device."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...configs.schema import ModelConfig
from ..core.errors import ModelError
from .checkpoint import Checkpoint, refusing
from .loader import LanguageModel, dtype_of, fit_whole, has_scales, log_quantized, whole_bytes

if TYPE_CHECKING:
    from ..vision.features import FeatureCache


def load_encoder(config: ModelConfig, checkpoint: Checkpoint, memory: int, *, pictures: bool = False) -> LanguageModel:
    """Loads the weights as ``loader.load_model`` does. Raises ModelError where the checkpoint cannot be loaded."""
    import mlx.core as mx

    from ..encoders.cpu_blocks import packed_bytes, substitute_blocks
    from ..patched_layers.layer_patching import make_dense

    with refusing(checkpoint):
        network, need = _prepared(config, checkpoint, memory)
        features = _features(config, checkpoint, network) if pictures else None
        mx.eval(network.parameters())
        make_dense(network)
        if features is not None:
            features.tower.make_ready()
    log_quantized(need, memory)
    model = _described(network, checkpoint, features)
    positions = type(network).max_positions(checkpoint.config)
    substitutes = substitute_blocks(network, model.vocabulary, positions)
    unpacked = 0 if "block" in substitutes else packed_bytes(network)  # mlx's own layers stayed: nothing will be packed
    return replace(model, substitutes=substitutes, weight_bytes=model.weight_bytes - unpacked)


def outline_encoder(config: ModelConfig, checkpoint: Checkpoint, memory: int, *, pictures: bool = False) -> LanguageModel:
    """Returns the model as ``load_encoder`` would, without its weights: they have names, shapes and types, but no values."""
    with refusing(checkpoint):
        network = _prepared(config, checkpoint, memory)[0]
        return _described(network, checkpoint, _features(config, checkpoint, network) if pictures else None)


def encoder_size(config: ModelConfig, checkpoint: Checkpoint, memory: int, *, pictures: bool = False) -> tuple[int, bool | None]:
    """Returns the bytes of the weights, packed ones too, and whether they would be dequantized; as ``loader.size``."""
    with refusing(checkpoint):
        network, need = _prepared(config, checkpoint, memory)
        features = _features(config, checkpoint, network) if pictures else None
    return _described(network, checkpoint, features).weight_bytes, None if need is None else fit_whole(need, memory)


def _prepared(config: ModelConfig, checkpoint: Checkpoint, memory: int) -> tuple[Any, int | None]:
    """Makes the network, dequantized if that fits; reads and computes nothing yet. Second: see ``whole_bytes``."""
    from mlx_lm.utils import dequantize_model

    if checkpoint.adapter is not None:
        raise ModelError(f"model.adapter: {checkpoint.config.get('model_type')} is an encoder, and adapters are for decoders; remove it")
    network, dtype = _opened(config, checkpoint), dtype_of(config.dtype)
    need = whole_bytes(network)
    if fit_whole(need, memory):
        dequantize_model(network)
        if dtype is not None:
            network.set_dtype(dtype)
    network.eval()
    return network, need


def _opened(config: ModelConfig, checkpoint: Checkpoint) -> Any:
    """Makes the network in the precision asked for; its weights are not read yet."""
    from ..encoders.registry import encoder_class

    encoder = encoder_class(checkpoint.config)
    assert encoder is not None
    return _with_weights(encoder(checkpoint.config), config, checkpoint)


def _features(config: ModelConfig, checkpoint: Checkpoint, texts: Any) -> "FeatureCache":
    """Makes what keeps the vectors of pictures, with the vision tower; its weights are not read yet. texts: the text encoder."""
    from ..encoders.text_towers import TextTower
    from ..vision.features import FeatureCache
    from ..vision.image_encoder import image_encoder
    from ..vision.two_towers import ImageTower

    assert isinstance(texts, TextTower)
    return FeatureCache(ImageTower(_with_weights(image_encoder(checkpoint.config, type(texts)), config, checkpoint).eval()))


def _with_weights(network: Any, config: ModelConfig, checkpoint: Checkpoint) -> Any:
    """Returns a network with the checkpoint's weights, which are not read yet, in the precision asked for."""
    import mlx.core as mx
    from mlx import nn

    held = dict[str, Any]()
    for file in sorted(checkpoint.folder.glob("model*.safetensors")):
        in_file: Any = mx.load(str(file))
        held |= in_file
    weights = network.sanitize(held)
    if settings := checkpoint.config.get("quantization"):
        # By what the weights hold: a conversion leaves out layers whose sizes do not suit.
        nn.quantize(
            network,
            settings["group_size"],
            settings["bits"],
            mode=settings.get("mode", "affine"),
            class_predicate=lambda path, module: hasattr(module, "to_quantized") and f"{path}.scales" in weights,
        )
    network.load_weights(list(weights.items()))
    if (dtype := dtype_of(config.dtype)) is not None:
        network.set_dtype(dtype)
    return network


def _described(network: Any, checkpoint: Checkpoint, features: "FeatureCache | None" = None) -> LanguageModel:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from ..encoders.cpu_blocks import packed_bytes

    arrays: list[Any] = [a for _, a in tree_flatten(network.parameters())]
    floats = {str(a.dtype).removeprefix("mlx.core.") for a in arrays if mx.issubdtype(a.dtype, mx.floating)}
    vocabulary = int(type(network).settings(checkpoint.config)["vocab_size"])
    held = sum(a.nbytes for a in arrays) + packed_bytes(network) + (0 if features is None else features.tower.nbytes)
    dtype = "/".join(sorted(floats))
    return LanguageModel(network, checkpoint, vocabulary, dtype, held, quantized=has_scales(network), features=features)
