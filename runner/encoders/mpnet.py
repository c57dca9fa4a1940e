"""MPNet (Song et al. 2020): BERT without token types, with a bias on scores that depends on the distance of two tokens."""

from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from .attention import AttentionMask
from .blocks import BlockShape, PostNormBlock
from .checkpoint_keys import CheckpointKeys
from .embeddings import TokenEmbeddings
from .encoder import Encoder
from .settings import Config, check_setting, head_width

PAD = 1  # positions begin behind it, whatever config.json calls the pad
BUCKETS, FARTHEST = 32, 128  # of distances; transformers takes no others


class MPNetEncoder(Encoder):
    """MPNet: one table of biases [buckets, heads] serves all blocks."""

    defaults: ClassVar[Config] = {
        "vocab_size": 30527,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("mpnet.",),
        layers="encoder.layer",
        names={
            "embeddings.word_embeddings": "embeddings.words",
            "embeddings.position_embeddings": "embeddings.positions",
            "embeddings.LayerNorm": "embeddings.norm",
            "encoder.relative_attention_bias": "distance_bias",
        },
        block_names={
            "attention.attn.q": "query",
            "attention.attn.k": "key",
            "attention.attn.v": "value",
            "attention.attn.o": "attention_output",
            "attention.LayerNorm": "attention_norm",
            "intermediate.dense": "mlp_input",
            "output.dense": "mlp_output",
            "output.LayerNorm": "mlp_norm",
        },
    )

    def _build(self, config: Config) -> None:
        check_setting(config, "relative_attention_num_buckets", (BUCKETS,), BUCKETS)
        head_width(config, "hidden_size", "num_attention_heads")
        width, heads, eps = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]
        self.embeddings = TokenEmbeddings(config["vocab_size"], width, eps, positions=config["max_position_embeddings"], pad=PAD)
        self.distance_bias = nn.Embedding(BUCKETS, heads)
        shape = BlockShape(width, heads, config["intermediate_size"], eps, config["hidden_act"])
        self.blocks: list[Any] = [PostNormBlock(shape) for _ in range(config["num_hidden_layers"])]

    def _mask(self, lengths: list[int], columns: int) -> AttentionMask:
        at = np.arange(columns)
        distances = self.distance_bias(mx.array(distance_buckets(np.arange(1 - columns, columns))))  # [2T - 1, H]
        bias = distances[mx.array(at[None] - at[:, None] + columns - 1)]  # [T, T, H]
        return AttentionMask(lengths, columns, bias.transpose(2, 0, 1)[None])

    @classmethod
    def max_positions(cls, config: Config) -> int:
        """Returns how many tokens a text may have: the table's rows without those before the first position."""
        return cls.settings(config)["max_position_embeddings"] - PAD - 1


def distance_buckets(distances: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the bucket of each distance, key minus query (T5's, Raffel et al. 2020, both ways).

    Half of the buckets are for keys to the right. Of 16, the first 8 hold one distance each, the others grow up to ``FARTHEST``.
    """
    half, exact = BUCKETS // 2, BUCKETS // 4
    away = np.abs(distances)
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(FARTHEST / exact))
    far = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int64), half - 1)
    return (np.where(away < exact, away, far) + half * (distances > 0)).astype(np.int32)
