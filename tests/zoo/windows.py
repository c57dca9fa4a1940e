"""Tiny configurations of models with sliding or chunked attention, in every pattern of layers.

Plain dicts, as a config.json of each would say it. The window is shorter than a test's rows.
"""

from .dense import BASE, HEADS, LLAMA, TIED, VOCABULARY, Config
from .moe import EXPERTS

WINDOW = 8
SLIDING, FULL_ATTENTION = "sliding_attention", "full_attention"
MIXED: Config = {"num_hidden_layers": 3, "sliding_window": WINDOW, "layer_types": [SLIDING, SLIDING, FULL_ATTENTION]}
PATTERN: Config = {"num_hidden_layers": 3, "sliding_window": WINDOW, "sliding_window_pattern": 3}
BY_LAYER_TYPE: Config = {  # of transformers 5's rope_parameters
    FULL_ATTENTION: {"rope_type": "default", "rope_theta": 100000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA: Config = {"query_pre_attn_scalar": 16, "rope_local_base_freq": 100.0}
GEMMA3N: Config = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "intermediate_size": [128] * 6,
    "layer_types": [SLIDING, FULL_ATTENTION, SLIDING, FULL_ATTENTION, SLIDING, FULL_ATTENTION],
    "sliding_window": WINDOW,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "rope_local_base_freq": 100.0,
    "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
    "altup_num_inputs": 4,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 16,
    "tie_word_embeddings": True,
}
GEMMA4: Config = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "global_head_dim": 32,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": 1,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "layer_types": [SLIDING, SLIDING, FULL_ATTENTION, SLIDING, SLIDING, FULL_ATTENTION],
    "sliding_window": WINDOW,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": True,
}
EXAONE_MOE: Config = {"num_shared_experts": 1, "is_moe_layer": [False, True, True], "n_group": 1, "topk_group": 1}
LAGUNA: Config = {
    "num_attention_heads_per_layer": [4, 4, 8],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "shared_expert_intermediate_size": 32,
    "moe_routed_scaling_factor": 1.5,
    "rope_parameters": {
        FULL_ATTENTION: {"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.5},
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    },
}
MIMO_V2: Config = {
    "hybrid_layer_pattern": [0, 1, 1],
    "moe_layer_freq": [0, 1, 1],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "sliding_window_size": WINDOW,
    "n_shared_experts": None,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "layernorm_epsilon": 1e-5,
    "swa_rope_theta": 100.0,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "v_head_dim": 16,
    "swa_head_dim": 16,
    "swa_v_head_dim": 16,
    "partial_rotary_factor": 0.5,
    "attention_value_scale": 0.7,
}
STEP: Config = {
    "num_attention_groups": 2,
    "num_hidden_layers": 4,
    "layer_types": [FULL_ATTENTION, SLIDING, SLIDING, FULL_ATTENTION],
    "sliding_window": WINDOW,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
    "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 16},
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 32,
    "moe_layers_enum": "2,3",
    "swiglu_limits": [0.0, 0.0, 7.0, 7.0],
    "swiglu_limits_shared": [0.0, 0.0, 16.0, 16.0],
}
MUSE_SPARK: Config = {
    "text_config": HEADS
    | MIXED
    | {
        "post_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0},
        "layer_rope_theta": [10000.0, 10000.0, 0.0],
        "final_logit_softcapping": 30.0,
        "output_multiplier": 1.0,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_hidden_size": 32,
        "moe_intermediate_size": 32,
    }
}
LLAMA4: Config = HEADS | {
    "num_hidden_layers": 4,
    "attention_bias": False,
    "attention_chunk_size": WINDOW,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 128,
    "num_experts_per_tok": 1,
    "num_local_experts": 4,
    "rope_scaling": None,
    "use_qk_norm": True,
    "floor_scale": 16,
}

CONFIGS: dict[str, Config] = {
    "afmoe": HEADS | MIXED | EXPERTS | {"num_dense_layers": 1, "num_shared_experts": 1, "route_scale": 1.5},
    "cohere2": HEADS | PATTERN | {"layer_norm_eps": 1e-5, "logit_scale": 0.8},
    "exaone4": HEADS | {"num_hidden_layers": 4, "sliding_window": WINDOW, "sliding_window_pattern": "LLG", "rope_scaling": None},
    "exaone_moe": HEADS | MIXED | EXPERTS | EXAONE_MOE,
    "gemma3_text": HEADS | PATTERN | TIED | GEMMA,
    "gpt_oss": HEADS | MIXED | {"intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
    "iquestloopcoder": LLAMA | {"loop_num": 2, "loop_window_size": WINDOW},
    "laguna": HEADS | MIXED | EXPERTS | LAGUNA,
    "mellum": HEADS | MIXED | EXPERTS | {"rope_parameters": BY_LAYER_TYPE},
    "mimo_v2_flash": HEADS | MIMO_V2,
    "ministral3": HEADS
    | MIXED
    | {"rope_parameters": {"rope_theta": 10000.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}},
    "muse_glimmer": HEADS | MIXED | {"output_multiplier": 1.0},
    "olmo3": HEADS | MIXED,
    "plamo3": HEADS | PATTERN | {"window_size": WINDOW},
    "spark2_5": HEADS | MIXED | TIED | {"rope_parameters": BY_LAYER_TYPE},
    "step3p5": HEADS | STEP,
    # Models of several modalities, through their text part.
    "gemma3": {"vocab_size": VOCABULARY, "text_config": HEADS | PATTERN | GEMMA | {"model_type": "gemma3_text"}},
    "gemma3n": {"text_config": HEADS | GEMMA3N | {"model_type": "gemma3n_text"}},
    "gemma4_text": HEADS | GEMMA4,
    "gemma4": {"vocab_size": VOCABULARY, "text_config": HEADS | GEMMA4 | {"model_type": "gemma4_text"}},
    "llama4": {"text_config": LLAMA4 | {"model_type": "llama4_text"}},
    "mistral3": {"text_config": LLAMA | MIXED | {"model_type": "llama"}},
    "pixtral": {"text_config": LLAMA | {"model_type": "llama"}},
    "qwen2_vl": {"text_config": BASE | {"model_type": "qwen2"}},
    "qwen3_vl": {"text_config": HEADS | {"model_type": "qwen3"}},
    "qwen3_vl_moe": {"text_config": HEADS | EXPERTS | {"model_type": "qwen3_moe", "mlp_only_layers": [0], "decoder_sparse_step": 1}},
}
