"""Nomic's BERT (Nussbaum et al. 2024): nomic-embed-text v1 and v1.5, with rotary positions and gated MLPs without biases."""

from typing import Any, ClassVar

from .attention import RotaryPositions
from .blocks import BlockShape, PostNormBlock
from .checkpoint_keys import CheckpointKeys
from .embeddings import TokenEmbeddings
from .encoder import Encoder
from .settings import Config, check_setting, head_width, with_defaults

# transformers' names, and those of the hub's own code, which is derived from GPT-2.
OLDER = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
# What the hub's code could do otherwise, and what it does in v1 and v1.5. Experts are those of v2.
SERVED: dict[str, Any] = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "moe_every_n_layers": 0,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "use_rms_norm": False,
}


class NomicBertEncoder(Encoder):
    """Nomic's BERT: post-norm blocks."""

    defaults: ClassVar[Config] = {
        "vocab_size": 30528,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "rope_theta": 1000.0,
    }
    weight_names: ClassVar[CheckpointKeys] = CheckpointKeys(
        prefixes=("bert.", "nomic_bert."),
        layers=("encoder.layers", "layers"),
        names={
            "embeddings.word_embeddings": "embeddings.words",
            "embeddings.token_type_embeddings": "embeddings.types",
            "embeddings.LayerNorm": "embeddings.norm",
            "emb_ln": "embeddings.norm",
        },
        block_names={
            "attn.Wqkv": "qkv",
            "attn.out_proj": "attention_output",
            "norm1": "attention_norm",
            "mlp.fc12": "gate",
            "mlp.fc11": "up",
            "mlp.fc2": "mlp_output",
            "norm2": "mlp_norm",
            # transformers' own
            "self_attn.q_proj": "query",
            "self_attn.k_proj": "key",
            "self_attn.v_proj": "value",
            "self_attn.o_proj": "attention_output",
            "post_attention_layernorm": "attention_norm",
            "mlp.gate_proj": "gate",
            "mlp.up_proj": "up",
            "mlp.down_proj": "mlp_output",
            "post_mlp_layernorm": "mlp_norm",
        },
    )

    def _build(self, config: Config) -> None:
        for name, served in SERVED.items():
            check_setting(config, name, (served,), served)
        width, eps, heads = config["hidden_size"], config["layer_norm_eps"], config["num_attention_heads"]
        dims = head_width(config, "hidden_size", "num_attention_heads")
        check_setting(config, "head_dim", (dims,), dims)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        check_setting(rope | {"model_type": config.get("model_type")}, "rope_type", ("default",), "default")
        turns = RotaryPositions(dims, rope.get("rope_theta", config["rope_theta"]))
        self.embeddings = TokenEmbeddings(config["vocab_size"], width, eps, types=config["type_vocab_size"])
        shape = BlockShape(
            width, heads, config["intermediate_size"], eps, config["hidden_act"], gated=True, attention_bias=False, mlp_bias=False
        )
        self.blocks: list[Any] = [PostNormBlock(shape, rope=turns) for _ in range(config["num_hidden_layers"])]

    @classmethod
    def settings(cls, config: Config) -> Config:
        """Returns ``config`` with transformers' names for older ones, and with the defaults."""
        older = {name: config[old] for name, old in OLDER.items() if config.get(old) is not None}
        return with_defaults(config, cls.defaults | older)

    @classmethod
    def max_positions(cls, config: Config) -> int:
        """Returns how many tokens a text may have.

        Rotary positions are computed up to ``n_positions``. With a ``rotary_scaling_factor`` longer texts than those of the training
        would be turned otherwise, so they end there.
        """
        trained = config.get("max_trained_positions") or cls.settings(config)["max_position_embeddings"]
        return trained if config.get("rotary_scaling_factor") else config.get("n_positions") or trained
