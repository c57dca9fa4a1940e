"""Loads a checkpoint's weights and adapter through mlx-lm, in the precision that suits the device.

Settings that transformers 5 renamed are translated first (config_compat.py). Knows nothing of prompts or batches.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configs.schema import ModelConfig
from ...kernels import backend
from ..core.errors import ModelError
from ..core.units import size_as_text
from ..pooling.spec import PoolingSpec
from ..ranks.model_split import WHOLE, ModelSplit, split_network
from ..ranks.ranks import ALONE, Ranks
from .checkpoint import Checkpoint, checkpoint_fingerprints, mostly_bfloat16, refusing
from .config_compat import mlx_lm_settings

if TYPE_CHECKING:
    from ..vision.features import FeatureCache
    from .adapters import Adapters

log = logging.getLogger("mlx_bulk")

WHOLE_SHARE = 0.75  # of the memory, that weights may take as float32 which were quantized

Classes = Callable[[dict[str, Any]], tuple[Any, Any]]  # config -> what makes a network, and its arguments


@dataclass(slots=True, frozen=True)
class LanguageModel:
    """A loaded model: ``network`` maps token ids [B, T] and caches to logits [B, T, vocabulary].

    substitutes: the functions of it that our kernels compute. quantized: whether matrices are held quantized. adapters: puts other
    weights on it; None for an ``outline``. pooling: what becomes of its hidden states, for a model whose ``network`` is a
    ``PoolingNetwork``. features: keeps those of pictures; None for a model that was loaded to read text alone. split: the ranks that
    hold the model together.
    """

    network: Any
    checkpoint: Checkpoint
    vocabulary: int
    dtype: str
    weight_bytes: int
    substitutes: tuple[str, ...] = ()
    quantized: bool = False
    adapters: "Adapters | None" = None
    pooling: PoolingSpec | None = None
    features: "FeatureCache | None" = None
    split: ModelSplit = WHOLE

    @property
    def parameter_bytes(self) -> int:
        """The bytes of the network's parameters: ``weight_bytes`` without packed copies and a vision tower."""
        return _parameter_bytes(self.network)

    @property
    def called_network(self) -> Any:
        """The network that a call goes to, whose layers the kernels' classes are put on: a pooling model's lies within its body."""
        if self.pooling is None:
            return self.network
        body = self.network.body
        return getattr(body, "network", body)


def load_model(
    config: ModelConfig,
    checkpoint: Checkpoint,
    memory: int,
    classes: Classes | None = None,
    *,
    pictures: bool = False,
    ranks: Ranks = ALONE,
    beside: int = 0,
) -> LanguageModel:
    """Loads the weights. On the CPU they are float32; quantized ones are dequantized where ``fit_whole`` in ``memory`` bytes, else kept.

    classes: what mlx-lm makes the network of, None for a language model with its head. pictures: it is to read pictures too.
    ranks: several load a part each. beside: bytes of models that are loaded later; this one's packed weights leave them room.

    Raises ModelError where the checkpoint or its adapter cannot be loaded.
    """
    mx = backend.load_mlx()
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_config

    from ...kernels import native
    from ..layers.kernel_injection import packing_bytes, substitute
    from ..patched_layers.layer_patching import make_dense, patch_quantized_layers
    from .adapters import Adapters

    def opened(folder: Path) -> Any:
        return _prepared(config, Checkpoint(folder, None, load_config(folder)), memory, classes)[0]

    with refusing(checkpoint, next_token=classes is None):
        if pictures and ranks.several:
            raise ModelError("rows with pictures: a model that is split over several processes reads text alone; run it in one process")
        network, need = _prepared(config, replace(checkpoint, adapter=None), memory, classes)
        features = _features(network, config, checkpoint) if pictures else None
        split = split_network(network, ranks, checkpoint.folder.name, lambda: _prepared(config, checkpoint, memory, classes)[0])
        mx.eval(network.parameters())
        make_dense(network)
        if features is not None:
            features.tower.make_ready()
        patch_quantized_layers(network)
        vocabulary = _vocabulary(network)
    # Before anything is put on: the bits by which the base is known again are those of the kernels that stay.
    packs = not ranks.several and checkpoint.adapter is None
    packed = packing_bytes(network, memory - beside, _head_width(vocabulary, classes)) if packs else 0
    substitutes = substitute(network, vocabulary, checkpoint.window, packed > 0)
    adapters = Adapters(network, dtype_of(config.dtype), lambda: checkpoint_fingerprints(checkpoint)["model.weights"], opened)
    if checkpoint.adapter is not None:
        try:
            adapters.put_on(checkpoint.adapter)
        except ModelError as error:
            raise ModelError(f"the adapter {error}") from error
        adapters.stay()
    log_quantized(need, memory, slow=native.library() is None or _has_other_modes(network))
    arrays: list[Any] = [a for _, a in tree_flatten(network.parameters())]
    floats = {str(a.dtype).removeprefix("mlx.core.") for a in arrays if mx.issubdtype(a.dtype, mx.floating)}
    held = _parameter_bytes(network) + _tower_bytes(features) + (packed if "linear" in substitutes or "block" in substitutes else 0)
    dtype, quantized = "/".join(sorted(floats)), has_scales(network)
    base = (network, checkpoint, vocabulary, dtype, held, substitutes, quantized, adapters)
    return LanguageModel(*base, features=features, split=split)


def outline(
    config: ModelConfig, checkpoint: Checkpoint, memory: int, classes: Classes | None = None, *, pictures: bool = False, beside: int = 0
) -> LanguageModel:
    """Returns the model as ``load_model`` would, without its weights: they have names, shapes and types, but no values.

    Nothing may be computed with it. Raises ModelError as ``load_model`` does.
    """
    backend.load_mlx()
    from ...kernels import native
    from ..layers.kernel_injection import packing_bytes

    with refusing(checkpoint, next_token=classes is None):
        network, quantized = _prepared(config, checkpoint, memory, classes)
        features = _features(network, config, checkpoint) if pictures else None
        vocabulary = _vocabulary(network)
        fit = not native.tiles() or (quantized is None and mostly_bfloat16(checkpoint.folder))
    held = _parameter_bytes(network) + _tower_bytes(features)
    if checkpoint.adapter is None:
        held += packing_bytes(network, memory - beside, _head_width(vocabulary, classes), lambda _: fit)
    return LanguageModel(network, checkpoint, vocabulary, config.dtype, held, quantized=has_scales(network), features=features)


def size(
    config: ModelConfig, checkpoint: Checkpoint, memory: int, classes: Classes | None = None, *, pictures: bool = False
) -> tuple[int, bool | None]:
    """Returns the bytes of the weights as ``load_model`` would hold them, packed copies aside, and whether it would dequantize them.

    The second is None for weights that are not quantized. Reads names and shapes alone. Raises ModelError as ``load_model`` does.
    """
    backend.load_mlx()
    with refusing(checkpoint, next_token=classes is None):
        network = _opened(config, checkpoint, classes)
        need = whole_bytes(network)
        tower = _tower_bytes(_features(network, config, checkpoint)) if pictures else 0
    if need is not None and fit_whole(need, memory):
        return need + tower, True
    return _parameter_bytes(network) + tower, None if need is None else False


def _parameter_bytes(network: Any) -> int:
    from mlx.utils import tree_flatten

    arrays: list[Any] = [array for _, array in tree_flatten(network.parameters())]
    return sum(array.nbytes for array in arrays)


def _features(network: Any, config: ModelConfig, checkpoint: Checkpoint) -> "FeatureCache":
    """Makes ``network`` read pictures; the tower's weights are not read yet."""
    from ..vision.picture_reader import read_pictures

    settings = checkpoint.config | mlx_lm_settings(checkpoint.config)
    features = read_pictures(network, checkpoint.folder, settings, dtype_of(config.dtype), unchecked=config.unchecked_images)
    if features.uncompared is not None and checkpoint.adapter is not None:
        raise ModelError(
            "model.unchecked_images: with an adapter the model has other logprobs than mlx-vlm's, with which it is compared; merge it first"
        )
    return features


def _tower_bytes(features: "FeatureCache | None") -> int:
    return 0 if features is None else features.tower.nbytes


def log_quantized(need: int | None, memory: int, slow: bool = True) -> None:
    """Says that quantized weights stay so, where they do; a warning where no kernel of ours serves them. need: see ``whole_bytes``."""
    if need is not None and not fit_whole(need, memory):
        most = size_as_text(int(WHOLE_SHARE * memory))
        room = (
            f"as float32 they would take {size_as_text(need)}; {most} is three quarters of what batch.memory leaves, "
            "and cached tokens need the rest"
        )
        if slow:
            log.warning("the weights stay quantized (%s): matrix products are slow on this CPU", room)
        else:
            log.info("the weights stay quantized (%s)", room)


def _prepared(config: ModelConfig, checkpoint: Checkpoint, memory: int, classes: Classes | None) -> tuple[Any, int | None]:
    """Makes the network with its adapter, dequantized if that fits; reads and computes nothing yet. Second: see ``whole_bytes``."""
    from mlx_lm.utils import dequantize_model

    from ..patched_layers.mended_layers import mend_layers
    from .adapters import AdapterRefused, load_adapter

    network, dtype = _opened(config, checkpoint, classes), dtype_of(config.dtype)
    need = whole_bytes(network)
    if fit_whole(need, memory):
        dequantize_model(network)
    if checkpoint.adapter is not None:
        try:
            load_adapter(network, checkpoint.adapter)
        except AdapterRefused as error:
            raise ModelError(f"the adapter {checkpoint.adapter}: {error}") from error
    if dtype is not None:
        network.set_dtype(dtype)  # what dequantizing and the adapter brought with them
    mend_layers(network)
    network.eval()
    return network, need


def _vocabulary(network: Any) -> int:
    """Returns the width of the logits."""
    import mlx.core as mx

    return int(network(mx.array([[0, 0]])).shape[-1])  # two tokens: for one alone, no mask is made


def _head_width(vocabulary: int, classes: Classes | None) -> int:
    """Returns the outputs of a network's LM head; 0 for one that gives hidden states or rewards."""
    return vocabulary if classes is None else 0


def _opened(config: ModelConfig, checkpoint: Checkpoint, classes: Classes | None) -> Any:
    """Makes the network in the precision asked for; its weights are not read yet."""
    from mlx_lm.utils import load_model

    from .rope_compat import keep_yarn_range
    from .weights_compat import mlx_lm_classes

    settings = mlx_lm_settings(checkpoint.config)
    network, _ = load_model(
        checkpoint.folder,
        lazy=True,
        model_config=settings,
        get_model_classes=classes or mlx_lm_classes,  # pyright: ignore[reportArgumentType] - a function that makes the network will do
        trust_remote_code=config.trust_remote_code,
    )
    keep_yarn_range(network, checkpoint.config | settings)
    if (dtype := dtype_of(config.dtype)) is not None:
        network.set_dtype(dtype)  # before dequantizing: half-precision scales would round the weights once more
    return network


def dtype_of(wanted: str) -> Any:
    """Returns the precision to cast to, None for the checkpoint's own. ``auto`` on the CPU is float32: half precision is slow there."""
    import mlx.core as mx

    if wanted == "auto":
        return mx.float32 if backend.device_name() == "cpu" else None
    return getattr(mx, wanted)


def _has_other_modes(network: Any) -> bool:
    """Returns whether a matrix is quantized in another way than mlx's affine one, as mxfp4: our kernels do not serve it."""
    return any(getattr(layer, "mode", "affine") != "affine" for layer in network.modules() if "scales" in layer)


def whole_bytes(network: Any) -> int | None:
    """Returns the bytes of quantized weights as float32 on the CPU, where quantized products are slow; else None."""
    from mlx_lm.utils import get_total_parameters

    return 4 * int(get_total_parameters(network)) if backend.device_name() == "cpu" and has_scales(network) else None


def fit_whole(need: int | None, memory: int) -> bool:
    """Returns True where quantized weights are to become float32. need: see ``whole_bytes``."""
    return need is not None and need <= WHOLE_SHARE * memory


def has_scales(network: Any) -> bool:
    """Returns whether a matrix is held quantized."""
    from mlx.utils import tree_flatten

    return any(name.endswith(".scales") for name, _ in tree_flatten(network.parameters()))
