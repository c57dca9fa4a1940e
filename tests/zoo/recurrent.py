"""Tiny configurations of recurrent models and hybrids: state spaces, linear attention, convolutions, beside attention or alone.

Plain dicts, as a config.json of each would say it. Every kind of layer that a model can have is there.
"""

from .dense import BASE, GRANITE, HEADS, LLAMA, TIED, VOCABULARY, Config
from .latent import MLA
from .moe import BAILING, EXPERTS
from .windows import WINDOW

MAMBA: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "state_size": 16,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
}
MAMBA2: Config = {
    "num_heads": 4,
    "head_dim": 32,
    "n_groups": 2,
    "time_step_limit": [0.0, 100.0],
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
MAMBA_LAYERS: Config = {  # of hybrids
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_n_groups": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
JAMBA: Config = {
    "num_hidden_layers": 4,
    "attn_layer_offset": 1,
    "attn_layer_period": 2,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
LFM2: Config = {
    "num_hidden_layers": 4,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_ff_dim": 128,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "full_attn_idxs": [1, 3],
}
LINEAR: Config = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
QWEN35: Config = HEADS | LINEAR | {"num_hidden_layers": 4, "full_attention_interval": 2}
QWEN35_ROPE: Config = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
}
HADAMARD: Config = {
    "schema_version": 1,
    "tensor_namespace": "mlx-lm-text",
    "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
    "modules": [
        {"path": "model.layers.0.mlp.gate_proj", "embedding": False, "dtype": "float16", "block": 512},
        {"path": "model.layers.1.self_attn.q_proj", "embedding": False, "dtype": "float16", "block": 512},
        {"path": "model.embed_tokens", "embedding": True, "dtype": "float16", "block": 512},
        {"path": "lm_head", "embedding": False, "dtype": "float16", "block": 0},
    ],
}
KDA: Config = {"kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
KIMI: Config = (
    HEADS
    | MLA
    | {
        "num_key_value_heads": 4,
        "linear_attn_config": KDA,
        "model_max_length": 512,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "num_expert_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
    }
)
KIMI_K3: Config = KIMI | {"hidden_act": "situ", "attn_res_block_size": 2, "mla_use_output_gate": True, "routed_expert_hidden_size": 32}
NEMOTRON_H: Config = {
    "layers_block_type": ["mamba", "attention", "moe", "mlp"],
    "attention_bias": False,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "mamba_proj_bias": False,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_groups": 2,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "use_bias": False,
    "use_conv_bias": True,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
PLAMO2: Config = {
    "num_hidden_layers": 4,
    "hidden_size_per_head": 16,
    "attention_window_size": 512,
    "full_attention_idx": [],
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_num_heads": 4,
    "mamba_step": 2,
}
GRIFFIN: Config = {
    "attention_bias": False,
    "conv1d_width": 4,
    "num_key_value_heads": 1,
    "logits_soft_cap": 30.0,
    "attention_window_size": WINDOW,
    "block_types": ["recurrent", "recurrent", "attention"],
}
RWKV7: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "norm_eps": 1e-5,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "a_low_rank_dim": 16,
    "v_low_rank_dim": 16,
    "gate_low_rank_dim": 16,
    "decay_low_rank_dim": 16,
}
BAICHUAN: Config = {
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
    "sliding_window_layers": [1],
    "conv_window": 2,
    "num_swa_attention_heads": 4,
    "num_swa_key_value_heads": 4,
}
GEAR: Config = {
    "num_hidden_layers": 4,
    "layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"],
    "sliding_window": WINDOW,
    "conv_L_cache": 3,
    "rope_local_base_freq": 100.0,
}
LINEAR_BAILING: Config = BAILING | {"num_hidden_layers": 4, "layer_group_size": 2, "group_norm_size": 2}
BAILING_V3: Config = (
    LINEAR_BAILING
    | MLA
    | {"architectures": ["BailingMoeV3ForCausalLM"], "moe_shared_expert_intermediate_size": 32, "short_conv_kernel_size": 4}
)

CONFIGS: dict[str, Config] = {
    "baichuan_m1": BASE | BAICHUAN,
    "bailing_hybrid": HEADS | LINEAR_BAILING | MLA,
    "bailing_moe_linear": HEADS | LINEAR_BAILING,
    "bailing_moe_v3": HEADS | BAILING_V3 | {"model_type": "bailing_hybrid"},
    "falcon_h1": LLAMA | MAMBA_LAYERS | {"mamba_d_ssm": 128, "mamba_rms_norm": True, "num_hidden_layers": 2, "lm_head_multiplier": 0.5},
    "gear": HEADS | TIED | GEAR,
    "granitemoehybrid": LLAMA
    | TIED
    | GRANITE
    | MAMBA_LAYERS
    | {
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "position_embedding_type": "nope",
    },
    "jamba": BASE | TIED | JAMBA,
    "kimi_k3": {"text_config": KIMI_K3},
    "kimi_linear": KIMI,
    "lfm2": BASE | LFM2,
    "lfm2-vl": {"text_config": BASE | LFM2 | {"model_type": "lfm2"}},
    "lfm2_moe": BASE | LFM2 | EXPERTS | {"use_expert_bias": True, "num_dense_layers": 1},
    "mamba": MAMBA,
    "mamba2": MAMBA | MAMBA2,
    "nemotron_h": HEADS | NEMOTRON_H,
    "olmo_hybrid": BASE
    | LINEAR
    | {
        "num_hidden_layers": 4,
        "linear_allow_neg_eigval": True,
        "attention_bias": False,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "plamo2": BASE | TIED | PLAMO2,
    "prism_hadamard_qwen35": HADAMARD | {"text_config": QWEN35 | QWEN35_ROPE | {"hidden_size": 512, "num_hidden_layers": 2}},
    "qwen3_5": {"text_config": QWEN35 | QWEN35_ROPE},
    "qwen3_5_moe": {"text_config": QWEN35 | QWEN35_ROPE | EXPERTS | {"shared_expert_intermediate_size": 32}},
    "qwen3_next": QWEN35
    | EXPERTS
    | {"shared_expert_intermediate_size": 32, "mlp_only_layers": [0], "decoder_sparse_step": 1, "partial_rotary_factor": 0.5},
    "recurrent_gemma": BASE | GRIFFIN,
    "rwkv7": RWKV7,
}
