"""The text encoders of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023), whose vectors lie in one space with those of pictures.

Their blocks have the norms in front. CLIP looks back alone and reads the state at the EOS, SigLIP both ways and the last token's.
"""

from typing import Any, ClassVar

import mlx.core as mx
from mlx import nn

from ..core.arrays import Ids
from ..core.errors import ModelError
from .attention import AttentionMask
from .blocks import BlockShape, PreNormBlock
from .checkpoint_keys import CheckpointKeys, Weights
from .embeddings import TokenEmbeddings
from .encoder import Encoder
from .settings import Config, head_width, tower_settings

LEGACY_EOS = 2  # what configs said before transformers mended them: the EOS is then the largest id of a text
BLOCK_NAMES = {
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.out_proj": "attention_output",
    "layer_norm1": "attention_norm",
    "layer_norm2": "mlp_norm",
    "mlp.fc1": "mlp_input",
    "mlp.fc2": "mlp_output",
}
NAMES = {
    "embeddings.token_embedding": "embeddings.words",
    "embeddings.position_embedding": "embeddings.positions",
    "final_layer_norm": "final_norm",
}


class TextTower(Encoder):
    """The text encoder of a model with two towers, with its projection: the state of a text is its vector."""

    width_name: ClassVar[str] = "vector_size"
    projection_bias: ClassVar[bool]

    def _build(self, config: Config) -> None:
        head_width(config, "hidden_size", "num_attention_heads")
        self._config = config
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = TokenEmbeddings(config["vocab_size"], width, eps, positions=config["max_position_embeddings"])
        self.embeddings.norm = nn.Identity()
        shape = BlockShape(width, config["num_attention_heads"], config["intermediate_size"], eps, config["hidden_act"])
        self.blocks: list[Any] = [PreNormBlock(shape) for _ in range(config["num_hidden_layers"])]
        self.final_norm = nn.LayerNorm(width, eps=eps)
        self.projection = nn.Linear(width, config["vector_size"], bias=self.projection_bias)

    def __call__(self, tokens: mx.array | Ids, lengths: list[int], types: mx.array | None = None) -> mx.array:
        """Returns vectors [B, 1, D] of ``tokens`` [B, T]; row i has ``lengths[i]`` tokens, then pads of any id."""
        ids = mx.array(tokens)
        states = super().__call__(ids, lengths, types)
        at = self._place(ids, mx.array(lengths))
        return self.projection(self.final_norm(mx.take_along_axis(states, at[:, None, None], axis=1)))

    def _place(self, ids: mx.array, lengths: mx.array) -> mx.array:
        """Returns the place [B] of the token whose state is a row's."""
        raise NotImplementedError

    @property
    def positions(self) -> int:
        """The most tokens of a text."""
        return len(self.embeddings.positions.weight)

    @classmethod
    def settings(cls, config: Config) -> Config:
        """Returns the text's settings with the defaults of its model type, and ``vector_size``, the numbers of a vector."""
        text = tower_settings(config, "text", cls.defaults)
        return text | {"vector_size": cls.vector_size(config, text), "model_type": config.get("model_type")}

    @classmethod
    def vector_size(cls, config: Config, text: Config) -> int:
        """Returns the numbers of a vector. text: the settings of the text's tower."""
        raise NotImplementedError

    @classmethod
    def head_weights(cls, weights: Weights) -> Weights:
        """Returns no weights: there is no classifier, and the vision tower is none."""
        return {}


class ClipTextTower(TextTower):
    """CLIP's text encoder."""

    defaults: ClassVar[Config] = {
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("text_model.",), layers="encoder.layers", names=NAMES | {"text_projection": "projection"}, block_names=BLOCK_NAMES
    )
    projection_bias: ClassVar[bool] = False

    def _build(self, config: Config) -> None:
        super()._build(config)
        if not isinstance(config["eos_token_id"], int):
            raise ModelError(f"config.json: text_config.eos_token_id is {config['eos_token_id']!r}; expected one id; fetch the model anew")

    def _mask(self, lengths: list[int], columns: int) -> AttentionMask:
        at = mx.arange(columns)
        ahead = mx.where(at[None] > at[:, None], -mx.inf, 0.0).astype(self.final_norm.weight.dtype)
        heads = self._config["num_attention_heads"]
        return AttentionMask(lengths, columns, mx.contiguous(mx.broadcast_to(ahead, (1, heads, columns, columns))))

    def _place(self, ids: mx.array, lengths: mx.array) -> mx.array:
        """The first EOS; of a row without one, the last token."""
        eos, at = self._config["eos_token_id"], mx.arange(ids.shape[1])
        real = at < lengths[:, None]
        if eos == LEGACY_EOS:
            return mx.argmax(mx.where(real, ids, -1), axis=1)
        found = real & (ids == eos)
        return mx.where(found.any(axis=1), mx.argmax(found, axis=1), mx.maximum(lengths - 1, 0))

    @classmethod
    def vector_size(cls, config: Config, text: Config) -> int:
        """Returns the width of the projection."""
        return config.get("projection_dim") or 512


class SiglipTextTower(TextTower):
    """SigLIP's text encoder. Its texts are padded to all positions, and pads are tokens as any: the last position's state is read."""

    defaults: ClassVar[Config] = {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("text_model.",), layers="encoder.layers", names=NAMES | {"head": "projection"}, block_names=BLOCK_NAMES
    )
    projection_bias: ClassVar[bool] = True

    def _place(self, ids: mx.array, lengths: mx.array) -> mx.array:
        return mx.maximum(lengths - 1, 0)

    @classmethod
    def vector_size(cls, config: Config, text: Config) -> int:
        """Returns the outputs of the text's head."""
        return text.get("projection_size") or text["hidden_size"]
