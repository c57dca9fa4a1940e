"""Checkpoints of random weights that transformers builds, some 100 M parameters each, one an architecture, with the demo's tokenizer.

Mixtures of experts have 8 experts, of which 2 serve a token.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 32768


@dataclass(frozen=True, slots=True)
class HfShape:
    """The name of a config's class in transformers, and its settings. ``bare_head``: logits are the head's product and nothing more."""

    config: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    bare_head: bool = True


_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_EXPERTS = {"num_hidden_layers": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 896, "norm_topk_prob": True}
_GEMMA3 = {"full_attention": _ROPE["rope_parameters"], "sliding_attention": _ROPE["rope_parameters"]}
SHAPES: dict[str, HfShape] = {
    "gemma3_text": HfShape("Gemma3TextConfig", {"query_pre_attn_scalar": 64, "sliding_window": 512, "rope_parameters": _GEMMA3}),
    "gemma2": HfShape(
        "Gemma2Config", {"query_pre_attn_scalar": 64, "sliding_window": 1024, "tie_word_embeddings": True, **_ROPE}, bare_head=False
    ),
    "phi3": HfShape("Phi3Config", _ROPE),
    "granite": HfShape("GraniteConfig", {"logits_scaling": 4.0, **_ROPE}, bare_head=False),
    "olmo2": HfShape("Olmo2Config", _ROPE),
    "gpt_oss": HfShape("GptOssConfig", {**_EXPERTS, "num_local_experts": 8, "intermediate_size": 896, "sliding_window": 128}),
    "qwen3_moe": HfShape("Qwen3MoeConfig", {**_EXPERTS, "num_experts": 8, **_ROPE}),
    "mixtral": HfShape("MixtralConfig", {**_EXPERTS, "num_local_experts": 8, "intermediate_size": 896, **_ROPE}),
    "deepseek_v3": HfShape(
        "DeepseekV3Config",
        {
            **_EXPERTS,
            **_ROPE,
            "num_key_value_heads": 10,
            "head_dim": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 256,
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
        },
    ),
    "mamba2": HfShape(
        "Mamba2Config", {"num_heads": 20, "head_dim": 64, "state_size": 64, "n_groups": 1, "expand": 2, "num_hidden_layers": 16}
    ),
    "qwen3_next": HfShape(
        "Qwen3NextConfig",
        {
            **_EXPERTS,
            **_ROPE,
            "num_hidden_layers": 8,
            "num_experts": 8,
            "shared_expert_intermediate_size": 896,
            "moe_intermediate_size": 512,
        },
    ),
    "lfm2": HfShape(
        "Lfm2Config",
        {"block_auto_adjust_ff_dim": False, "layer_types": ["conv", "conv", "full_attention"] * 4, "tie_word_embeddings": True, **_ROPE},
    ),
}


def save(folder: Path, name: str) -> int:
    """Writes a checkpoint as transformers saves it, the same each time; returns the number of its parameters."""
    from networks import shapes

    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    shape = SHAPES[name]
    config = getattr(transformers, shape.config)(**{**_BASE, **shape.settings})
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    shapes.save_tokenizer(folder, VOCABULARY)
    return sum(parameter.numel() for parameter in model.parameters())
