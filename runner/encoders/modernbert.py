"""ModernBERT (Warner et al. 2024): rotary positions, gated MLPs, and blocks most of which see a window alone."""

from typing import Any, ClassVar

import mlx.core as mx
from mlx import nn

from ..core.errors import ModelError
from .attention import AttentionMask, RotaryPositions
from .blocks import BlockShape, PreNormBlock
from .checkpoint_keys import CheckpointKeys
from .embeddings import TokenEmbeddings
from .encoder import Encoder
from .settings import Config, check_setting, head_width

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = (FULL, SLIDING)


class ModernBertEncoder(Encoder):
    """ModernBERT: the block's norms stand before its parts, and one more behind the last block."""

    defaults: ClassVar[Config] = {
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("model.",),
        layers="layers",
        names={
            "embeddings.tok_embeddings": "embeddings.words",
            "embeddings.norm": "embeddings.norm",
            "final_norm": "final_norm",
        },
        block_names={
            "attn_norm": "attention_norm",
            "attn.Wqkv": "qkv",
            "attn.Wo": "attention_output",
            "mlp_norm": "mlp_norm",
            "mlp.Wi": "mlp_input",
            "mlp.Wo": "mlp_output",
        },
    )

    def _build(self, config: Config) -> None:
        width, eps, bias = config["hidden_size"], config["norm_eps"], config["norm_bias"]
        dims = head_width(config, "hidden_size", "num_attention_heads")
        shape = BlockShape(
            width,
            config["num_attention_heads"],
            config["intermediate_size"],
            eps,
            config["hidden_activation"],
            gated=True,
            attention_bias=config["attention_bias"],
            mlp_bias=config["mlp_bias"],
            norm_bias=bias,
        )
        ropes = {kind: RotaryPositions(dims, theta) for kind, theta in _thetas(config).items()}
        windows = {FULL: None, SLIDING: config["local_attention"] // 2}
        self.embeddings = TokenEmbeddings(config["vocab_size"], width, eps, norm_bias=bias)
        self.blocks: list[Any] = [PreNormBlock(shape, windows[kind], ropes[kind]) for kind in _layer_types(config)]
        self.blocks[0].attention_norm = nn.Identity()  # the embeddings are normalised already
        self.final_norm = nn.LayerNorm(width, eps=eps, bias=bias)

    def _states(self, x: mx.array, mask: AttentionMask) -> mx.array:
        return self.final_norm(super()._states(x, mask))


def _layer_types(config: Config) -> list[str]:
    """Returns each block's kind: as transformers 5 lists them, or one full block of every n, the first included."""
    layers = config["num_hidden_layers"]
    every = config["global_attn_every_n_layers"]
    kinds: list[str] = config.get("layer_types") or [SLIDING if block % every else FULL for block in range(layers)]
    if len(kinds) != layers or not set(kinds) <= set(LAYER_TYPES):
        raise ModelError(
            f"config.json: layer_types has {len(kinds)} entries ({', '.join(sorted(set(kinds)))}); "
            f"expected one of {', '.join(LAYER_TYPES)} for each of {layers} blocks, so mlx-bulk cannot use this checkpoint"
        )
    return kinds


def _thetas(config: Config) -> dict[str, float]:
    """Returns the base of each kind's rotation: by ``rope_parameters``, or by the names of before transformers 5."""
    parameters: dict[str, Config] = config.get("rope_parameters") or {}
    thetas = {FULL: config["global_rope_theta"], SLIDING: config["local_rope_theta"]}
    for kind in LAYER_TYPES:
        rope = (config.get("rope_scaling") or {}) | (parameters.get(kind) or {})
        for name in ("rope_type", "type"):
            check_setting(rope | {"model_type": config.get("model_type")}, name, ("default",), "default")
        thetas[kind] = rope.get("rope_theta", thetas[kind])
    return thetas
