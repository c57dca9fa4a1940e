"""mlx-vlm's tower and projector of a checkpoint, without its language model: one picture's pixels in, its features out.

The features come from mlx-vlm's own ``get_input_embeddings``, called on a row that is one picture's placeholders: what it returns for
them is what stands in the place of their embeddings, whatever the architecture. In the place of its language model is a stand-in
whose embeddings are zeros.
"""

import logging
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from ...configs.errors import ConfigError
from ...configs.visible import visible
from ...kernels import backend, native
from ..core.errors import DataError, ModelError, RunEnded, first_line, is_out_of_memory
from ..core.images import PromptImage
from ..layers.trial_calls import TOLERANCE
from ..patched_layers.layer_patching import patch_layers, unpatch_layers
from .features import ImageFeatures
from .text_networks import text_weights
from .tiles import TileRule, tile_features, tile_rule

log = logging.getLogger("mlx_bulk")

Config = dict[str, Any]
Weights = dict[str, mx.array]

PLACEHOLDERS = ("image_token_id", "image_token_index")  # under which configs keep the placeholder's id
OUTER = ("mm_tokens_per_image",)  # what mlx-vlm looks for in the text's config
# Model types whose GELU has another form in mlx-vlm than in transformers, and the right one by a part of the layers' names.
GELU_FORMS = {"internvl": {"": "none"}, "qwen3_vl_moe": {"mlp": "tanh", "merger": "none"}}
TEXTS = ("language_model.", "lm_head.", "model.layers.", "model.embed_tokens.", "model.norm.")
INSTALL = 'rows with pictures need mlx-vlm; install it: pip install "mlx-bulk[vision]"'


class TextStandIn(nn.Module):
    """Stands where mlx-vlm's model keeps its language model: embeddings are zeros [B, T, width], and there are no positions."""

    def __init__(self, width: int, dtype: mx.Dtype):
        super().__init__()
        self.width, self._dtype = width, dtype
        self.layers: list[nn.Module] = []

    @property
    def model(self) -> "TextStandIn":
        """Returns itself: some models ask for the embedding of the language model's body."""
        return self

    def embed_tokens(self, ids: mx.array) -> mx.array:
        """ids [B, T] -> zeros [B, T, width]."""
        return mx.zeros((*ids.shape, self.width), self._dtype)

    def get_rope_index(self, *args: Any, **kwargs: Any) -> tuple[None, None]:
        """Returns no positions: those of rows are kept beside their caches."""
        return None, None


class Tower:
    """One checkpoint's tower and projector. Its parameters are those of ``model`` alone.

    model: mlx-vlm's, with a stand-in for the language model. placeholder: the id that stands where a feature goes. tiles: how features of
    tiles are put together, where that is done here.
    """

    def __init__(self, model: Any, placeholder: int, tiles: TileRule | None = None):
        self.model, self.placeholder, self._tiles = model, placeholder, tiles
        self._untried = False  # our kernels suit it as far as we know, and no picture has shown it

    @property
    def nbytes(self) -> int:
        """The bytes of the weights."""
        return sum(array.nbytes for _, array in parameters_of(self.model))

    @property
    def width(self) -> int:
        """Numbers of a feature."""
        return self.model.language_model.width

    @property
    def levels(self) -> int:
        """The first layers of the network to which it adds features."""
        return len(getattr(self.model.config.vision_config, "deepstack_visual_indexes", None) or ())

    def make_ready(self) -> None:
        """Reads the weights. The CPU's kernels come in with the first picture, on which they are tried."""
        mx.eval(self.model.parameters())
        self._untried = backend.on_cpu_path() and native.library() is not None

    def features(self, image: PromptImage) -> ImageFeatures:
        """Returns a picture's features, computed. Raises DataError where the picture cannot be read, ModelError where the tower fails."""
        if self._untried:
            self._try_kernels(image)
        try:
            return self._made(image)
        finally:
            if backend.device_name() == "cpu":
                mx.clear_cache()  # the next picture has another size: mlx would keep these buffers beside its own

    def _try_kernels(self, image: PromptImage) -> None:
        """Puts our kernels into the tower, and takes them out again where a picture's features are not the same."""
        own = np.array(self._made(image).embeddings.astype(mx.float32))
        self._untried = False  # not before: a picture that cannot be read shows nothing
        patch_layers(self.model)
        try:
            gap = float(np.abs(np.array(self._made(image).embeddings.astype(mx.float32)) - own).max())
        except Exception as error:  # a model file may fail in any way
            log.debug("the tower with our kernels: %s", first_line(error))
            gap = float("inf")
        if not gap <= TOLERANCE * max(float(own.std()), 1e-3):
            unpatch_layers(self.model)
            log.warning("mlx's own layers stay in the vision tower, slower on this CPU: with ours, features move by %.2g", gap)

    def _made(self, image: PromptImage) -> ImageFeatures:
        try:
            embeddings, deepstack = self._embedded({name: as_array(value) for name, value in image.inputs().items()}, image.tokens)
            finite = mx.stack([mx.isfinite(layer).all() for layer in (embeddings, *deepstack)]).all()
            mx.eval(embeddings, finite, *deepstack)
        except Exception as error:  # a model file may fail in any way
            if isinstance(error, DataError | RunEnded) or is_out_of_memory(error):
                raise
            raise ModelError(f"the vision tower fails on a picture of {image.tokens} tokens: {first_line(error)}") from error
        if embeddings.shape[0] != image.tokens or any(layer.shape != embeddings.shape for layer in deepstack):
            raise ModelError(f"the vision tower made features of shape {embeddings.shape} for a picture of {image.tokens} tokens")
        if not finite:
            raise ModelError(f"the vision tower's features of a picture of {image.tokens} tokens are NaN or infinite")
        return ImageFeatures(embeddings, deepstack)

    def _embedded(self, inputs: dict[str, mx.array], tokens: int) -> tuple[mx.array, tuple[mx.array, ...]]:
        """Returns features [tokens, H], and those for each of the first layers."""
        if self._tiles is not None:
            return tile_features(self.model, self._tiles, inputs), ()
        ids = mx.full((1, tokens), self.placeholder, mx.int32)
        made = self.model.get_input_embeddings(ids, inputs.pop("pixel_values"), **inputs, mask=mx.ones(ids.shape, mx.int32))
        return made.inputs_embeds[0], tuple(made.deepstack_visual_embeds or ())


def placeholder_of(config: Config) -> int | None:
    """Returns the id of the token that stands where a picture's feature goes; None for a model that reads text alone."""
    found = next((config[name] for name in PLACEHOLDERS if isinstance(config.get(name), int)), None)
    return found if isinstance(config.get("vision_config"), dict) else None


def open_tower(folder: Path, config: Config, dtype: mx.Dtype | None) -> Tower:
    """Opens the tower of a checkpoint; its weights are not read yet. config: with mlx-lm's names (``config_compat``).

    dtype: to cast weights to, None for their own. Raises ConfigError without mlx-vlm, ModelError where mlx-vlm does not know the model
    or config and weights do not fit.
    """
    try:
        from mlx_vlm.utils import get_model_and_args, load_model_weights  # pyright: ignore[reportMissingImports]  (the extra vision)
    except ImportError as error:
        raise ConfigError(f"{INSTALL} ({first_line(error)})") from error
    kind, placeholder = config.get("model_type"), placeholder_of(config)
    if placeholder is None:
        raise ModelError(
            f"model.path: {folder} ({visible(str(kind))}) reads no pictures: its config.json names no vision_config and image token"
        )
    _require_activation(folder, config["vision_config"])
    try:
        settings = settings_of(config)
        family, _ = get_model_and_args(config=settings, model_path=folder)
        model = _without_text(family, settings, dtype or mx.float32)
        weights = _tower_weights(folder, family, model)
        load_model_weights(model, settings, weights, folder, lazy=True)
    except Exception as error:  # a model file may fail in any way
        raise ModelError(
            f"model.path: the vision tower of {folder} ({visible(str(kind))}) cannot be loaded by mlx-vlm: {first_line(error)}"
        ) from error
    if dtype is not None:
        model.set_dtype(dtype)
    model.eval()
    return Tower(model, placeholder, tile_rule(config))


def _require_activation(folder: Path, vision: Config) -> None:
    """Raises ModelError where mlx-vlm's tower has one activation whatever the config names, and that names another."""
    found = vision.get("hidden_act", "gelu")  # transformers' own for Pixtral
    if vision.get("model_type") == "pixtral" and found != "silu":
        raise ModelError(
            f"model.path: the Pixtral tower of {folder} has the activation {visible(str(found))} (vision_config.hidden_act in its "
            "config.json), and mlx-vlm computes silu alone; its features would be wrong"
        )


def settings_of(config: Config) -> Config:
    """Returns a config as mlx-vlm reads it, whichever transformers has saved it."""
    vision, text = dict(config["vision_config"]), dict(config.get("text_config") or config)
    kind = "pixtral" if vision.get("model_type") == "pixtral" and config["model_type"] == "llava" else str(config["model_type"])
    theta = (vision.get("rope_parameters") or {}).get("rope_theta")  # as transformers 5 writes it, of which mlx-vlm does not know
    if theta is not None:
        vision.setdefault("rope_theta", theta)
    vision.setdefault("model_type", kind)
    text |= {name: config[name] for name in OUTER if name in config and name not in text}
    if text.get("head_dim") is None and "num_attention_heads" in text:  # Qwen2's configs have none
        text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
    rope = text.get("rope_parameters") or {}
    if text.get("rope_scaling") is None and "mrope_section" in rope:  # what ``mlx_lm_settings`` leaves out, as nothing is scaled
        text["rope_scaling"] = {"type": "mrope", **{name: value for name, value in rope.items() if name != "rope_theta"}}
    together = (
        {name: value for name, value in text.items() if name not in ("model_type", "architectures")} if kind.startswith("qwen2") else {}
    )
    # Gemma 3 divides features by the root of this size, which hub configs do not have; its own default is another model's.
    together["hidden_size"] = text["hidden_size"]
    return {**together, **config, "model_type": kind, "hidden_size": text["hidden_size"], "text_config": text, "vision_config": vision}


def _without_text(family: Any, settings: Config, dtype: mx.Dtype) -> Any:
    """Makes mlx-vlm's model with a stand-in for its language model. Nothing of the latter was ever computed."""
    model = model_of(family, settings)
    model.language_model = TextStandIn(settings["hidden_size"], dtype)
    for part, form in GELU_FORMS.get(settings["model_type"], {}).items():
        for name, layer in model.named_modules():
            if isinstance(layer, nn.GELU) and part in name:
                layer.__init__(form)
    return model


def model_of(family: Any, settings: Config) -> Any:
    """Makes mlx-vlm's model of the module ``family``; its weights are random."""
    from mlx_vlm.utils import update_module_configs  # pyright: ignore[reportMissingImports]  (the extra vision has it)

    config = family.ModelConfig.from_dict(settings)
    config = update_module_configs(config, family, settings, ["text", "vision", "perceiver", "projector", "audio"])
    config.hidden_size = settings["hidden_size"]
    try:
        return family.Model(config)
    except ValueError:  # the tower's own model type, which transformers 5 writes: qwen2_vl_vision for qwen2_vl
        config.vision_config.model_type = settings["model_type"]
        return family.Model(config)


def _tower_weights(folder: Path, family: Any, model: Any) -> Weights:
    """Reads a folder's weights, lazily; returns those of the tower under mlx-vlm's names. Some more may be left: those of the text."""
    every: Weights = {}
    for file in sorted(folder.glob("model*.safetensors")):
        every |= cast(Weights, mx.load(str(file)))
    of_text = {id(array) for array in text_weights(every).values()}
    weights = {name: array for name, array in every.items() if id(array) not in of_text}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    if hasattr(family.VisionModel, "sanitize"):
        weights = family.VisionModel(model.config.vision_config).sanitize(weights)
    expected = {name for name, _ in parameters_of(model)}
    return {known_as(name, expected): array for name, array in weights.items() if not name.startswith(TEXTS)}


def known_as(name: str, expected: set[str]) -> str:
    """Returns the name that mlx-vlm expects: transformers 5 leaves one part of it out (``vision_model`` in CLIP's and SigLIP's)."""
    if name.startswith("visual."):  # ``AutoModel`` saves the tower without the ``model.`` that mlx-vlm looks for
        name = f"vision_tower.{name.removeprefix('visual.')}"
    module = name.rpartition(".")[0]
    if name in expected or any(other.startswith(f"{module}.") for other in expected):
        return name
    first, _, rest = name.partition(".")
    longer = [
        other
        for other in expected
        if other.startswith(f"{first}.") and other.endswith(f".{rest}") and other.count(".") == name.count(".") + 1
    ]
    if longer:
        return longer[0]
    scaled = f"{rest.rpartition('.')[0]}."  # scales and biases of quantized weights stand beside them
    longer = [other for other in expected if other.startswith(f"{first}.") and f".{scaled}" in other]
    return f"{longer[0].rpartition('.')[0]}.{name.rpartition('.')[2]}" if longer else name


def parameters_of(model: nn.Module) -> list[tuple[str, mx.array]]:
    """Returns the parameters of a model by their names."""
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def as_array(value: NDArray[np.generic]) -> mx.array:
    """Returns a processor's array as mlx's: whole numbers in 32 bits, as its functions of indices take them."""
    numbers: NDArray[Any] = value.astype(np.int32) if value.dtype.kind in "iu" else value
    return mx.array(numbers)
