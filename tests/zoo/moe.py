"""Tiny configurations of mixtures of experts with full attention: dense layers first or in between, experts shared or not.

Plain dicts, as a config.json of each would say it.
"""

from .dense import BASE, GRANITE, HEADS, LLAMA, TIED, VOCABULARY, Config

EXPERTS: Config = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
ROUTED: Config = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
DBRX: Config = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    "n_layers": 3,
    "n_heads": 4,
}
ERNIE: Config = {
    "use_bias": False,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 2,
    "moe_layer_interval": 1,
    "moe_num_shared_experts": 1,
}
HUNYUAN: Config = {
    "attention_bias": False,
    "moe_topk": 2,
    "num_experts": 4,
    "num_shared_expert": 1,
    "use_mixed_mlp_moe": True,
    "use_qk_norm": True,
    "use_cla": True,
    "cla_share_factor": 2,
    "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
}
BAILING: Config = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
    "moe_router_enable_expert_bias": True,
    "score_function": "sigmoid",
    "routed_scaling_factor": 1.5,
    "n_group": 2,
    "topk_group": 1,
}
PHIMOE_ROPE: Config = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "short_mscale": 1.0,
    "long_mscale": 1.2,
    "original_max_position_embeddings": 64,
}

CONFIGS: dict[str, Config] = {
    "Klear": LLAMA | EXPERTS | {"mlp_only_layers": [0], "decoder_sparse_step": 1, "n_shared_experts": 1},
    "bailing_moe": BASE | BAILING,
    "dbrx": DBRX,
    "deepseek": BASE | ROUTED,
    "dots1": HEADS | ROUTED,
    "ernie4_5_moe": HEADS | TIED | ERNIE,
    "glm4_moe": HEADS | ROUTED | {"rope_scaling": None, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5},
    "granitemoe": LLAMA | TIED | GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "hunyuan": BASE | HUNYUAN | {"num_hidden_layers": 4},
    "llama4_text": HEADS | TIED | {"intermediate_size_mlp": 128, "no_rope_layers": [1, 1, 0], "use_qk_norm": True},
    "minimax": HEADS | {"num_experts_per_tok": 2, "num_local_experts": 4, "shared_intermediate_size": 0, "rotary_dim": 8},
    "mixtral": HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "phimoe": BASE
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_scaling": PHIMOE_ROPE, "original_max_position_embeddings": 64},
    "qwen2_moe": BASE | EXPERTS | {"shared_expert_intermediate_size": 64},
    "qwen3_moe": HEADS | EXPERTS | {"mlp_only_layers": [0], "decoder_sparse_step": 1},
    "solar_open": HEADS | ROUTED | {"partial_rotary_factor": 1.0},
}
