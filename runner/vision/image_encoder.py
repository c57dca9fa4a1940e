"""The vision encoders of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): pixels of one size in, one vector a picture out.

Blocks are those of the text encoders. CLIP reads the state of a token of its own before the patches, SigLIP lets a learned query attend
to all of them.
"""

from typing import Any, ClassVar

import mlx.core as mx
from mlx import nn

from ..core.errors import ModelError
from ..encoders.attention import AttentionMask
from ..encoders.blocks import BlockShape, PreNormBlock
from ..encoders.checkpoint_keys import CheckpointKeys, Weights
from ..encoders.settings import Config, activation, check_setting, head_width, tower_settings
from ..encoders.text_towers import BLOCK_NAMES, TextTower

NAMES = {
    "embeddings.patch_embedding": "patches",
    "embeddings.position_embedding": "positions",
    "pre_layrnorm": "first_norm",  # as transformers spells it
    "post_layernorm": "final_norm",
}
_DEFAULTS: Config = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224}


class ImageEncoder(nn.Module):
    """What both have in common. config: the checkpoint's. Raises ModelError for what it cannot compute."""

    defaults: ClassVar[Config]
    weight_names: ClassVar[CheckpointKeys]
    own_tokens: ClassVar[int]  # before the patches
    patch_bias: ClassVar[bool]

    def __init__(self, config: Config):
        super().__init__()
        settings: Config = tower_settings(config, "vision", self.defaults) | {"model_type": config.get("model_type")}
        check_setting(settings, "num_channels", (3,), 3)
        head_width(settings, "hidden_size", "num_attention_heads")
        self.image_size, self.patch_size = _side(settings, "image_size"), _side(settings, "patch_size")
        self.heads, width, eps = settings["num_attention_heads"], settings["hidden_size"], settings["layer_norm_eps"]
        self.patches = nn.Linear(3 * self.patch_size**2, width, bias=self.patch_bias)
        self.positions = nn.Embedding(self.tokens, width)
        shape = BlockShape(width, self.heads, settings["intermediate_size"], eps, settings["hidden_act"])
        self.blocks = [PreNormBlock(shape) for _ in range(settings["num_hidden_layers"])]
        self.final_norm = nn.LayerNorm(width, eps=eps)
        self._build(config, settings)

    def _build(self, config: Config, settings: Config) -> None:
        """Makes the other layers. config: the whole checkpoint's; settings: this tower's."""
        raise NotImplementedError

    @property
    def tokens(self) -> int:
        """Tokens of a picture."""
        return (self.image_size // self.patch_size) ** 2 + self.own_tokens

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        raise NotImplementedError

    def __call__(self, pixels: mx.array) -> mx.array:
        """pixels [B, 3, S, S] -> vectors [B, D]."""
        pixels = pixels.astype(self.final_norm.weight.dtype)
        b, side, size = pixels.shape[0], self.image_size // self.patch_size, self.patch_size
        cut = pixels[:, :, : side * size, : side * size].reshape(b, 3, side, size, side, size)
        x = self._embedded(self.patches(cut.transpose(0, 2, 4, 1, 3, 5).reshape(b, side * side, -1)))
        mask = AttentionMask([x.shape[1]] * b, x.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        return self._vectors(x)

    def _embedded(self, patches: mx.array) -> mx.array:
        """Returns the first states [B, T, H] of patches [B, N, H]."""
        return patches + self.positions.weight

    def _vectors(self, states: mx.array) -> mx.array:
        """Returns vectors [B, D] of the last states [B, T, H]."""
        raise NotImplementedError

    @classmethod
    def sanitize(cls, weights: Weights) -> Weights:
        """Returns this tower's weights of a checkpoint under the names of our modules; the convolution over patches as a product."""
        own = cls.weight_names.body(weights)
        patches = own.get("patches.weight")
        return own if patches is None else own | {"patches.weight": patches.reshape(len(patches), -1)}


class ClipImageEncoder(ImageEncoder):
    """CLIP's."""

    defaults: ClassVar[Config] = {
        **_DEFAULTS,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("vision_model.",), layers="encoder.layers", names=NAMES | {"visual_projection": "projection"}, block_names=BLOCK_NAMES
    )
    own_tokens: ClassVar[int] = 1
    patch_bias: ClassVar[bool] = False

    def _build(self, config: Config, settings: Config) -> None:
        width = settings["hidden_size"]
        self.embeddings = {"class_embedding": mx.zeros(width)}
        self.first_norm = nn.LayerNorm(width, eps=settings["layer_norm_eps"])
        self.projection = nn.Linear(width, config.get("projection_dim") or 512, bias=False)

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return self.projection.weight.shape[0]

    def _embedded(self, patches: mx.array) -> mx.array:
        b, _, width = patches.shape
        first = mx.broadcast_to(self.embeddings["class_embedding"].astype(patches.dtype), (b, 1, width))
        return self.first_norm(super()._embedded(mx.concatenate([first, patches], axis=1)))

    def _vectors(self, states: mx.array) -> mx.array:
        return self.projection(self.final_norm(states[:, 0]))


class SiglipImageEncoder(ImageEncoder):
    """SigLIP's."""

    defaults: ClassVar[Config] = {
        **_DEFAULTS,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("vision_model.",), layers="encoder.layers", names=NAMES | {"head": "head"}, block_names=BLOCK_NAMES
    )
    own_tokens: ClassVar[int] = 0
    patch_bias: ClassVar[bool] = True

    def _build(self, config: Config, settings: Config) -> None:
        check_setting(settings, "vision_use_head", (True,), True)
        self.head = AttentionPooling(settings)

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        return self.head.probe.shape[-1]

    def _vectors(self, states: mx.array) -> mx.array:
        return self.head(self.final_norm(states))


class AttentionPooling(nn.Module):
    """A learned query that attends to all states, and an MLP behind it."""

    def __init__(self, settings: Config):
        super().__init__()
        width, inner = settings["hidden_size"], settings["intermediate_size"]
        self.heads = settings["num_attention_heads"]
        self.probe = mx.zeros((1, 1, width))
        self.attention: Any = {"in_proj_weight": mx.zeros((3 * width, width)), "in_proj_bias": mx.zeros(3 * width)}
        self.attention["out_proj"] = nn.Linear(width, width)
        self.layernorm = nn.LayerNorm(width, eps=settings["layer_norm_eps"])
        self.mlp: Any = {"fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, width)}
        self.activation = activation(settings["hidden_act"])

    def __call__(self, states: mx.array) -> mx.array:
        """states [B, T, H] -> vectors [B, H]."""
        b, _, width = states.shape
        weights, biases = (mx.split(self.attention[f"in_proj_{part}"], 3) for part in ("weight", "bias"))
        read = (mx.broadcast_to(self.probe, (b, 1, width)), states, states)
        q, k, v = (
            (x @ weight.T + bias).reshape(b, -1, self.heads, width // self.heads).transpose(0, 2, 1, 3)
            for x, weight, bias in zip(read, weights, biases, strict=True)
        )
        taken = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5)
        x = self.attention["out_proj"](taken.transpose(0, 2, 1, 3).reshape(b, width))
        return x + self.mlp["fc2"](self.activation(self.mlp["fc1"](self.layernorm(x))))


IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {"clip": ClipImageEncoder, "siglip": SiglipImageEncoder}


def image_encoder(config: Config, texts: type[TextTower]) -> ImageEncoder:
    """Returns the vision encoder beside a text encoder. Raises ModelError where their vectors have unlike sizes."""
    made = IMAGE_ENCODERS[config["model_type"]](config)
    if made.dimensions != (size := texts.hidden_size(config)):
        raise ModelError(f"config.json: vectors of pictures have {made.dimensions} numbers, those of texts {size}; fetch the model anew")
    return made


def _side(settings: Config, name: str) -> int:
    """Returns the side of a square in pixels."""
    value = settings[name]
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: vision_config.{name} is {value!r}; expected one number, the side of a square")
    return value
