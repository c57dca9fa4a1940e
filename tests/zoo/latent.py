"""Tiny configurations of models that attend to compressed keys and values (MLA), or to a choice of them.

Plain dicts, as a config.json of each would say it. What is chosen by an index is far fewer than a test's tokens.
"""

from .dense import BASE, VOCABULARY, Config
from .moe import ROUTED

MLA: Config = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
FULL = BASE | {"num_key_value_heads": 4, "attention_bias": False}
INDEX: Config = {"index_head_dim": 16, "index_n_heads": 16, "index_topk": 8}  # of few heads many scores are 0, and equal
YARN: Config = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
MISTRAL4_ROPE: Config = YARN | {"rope_theta": 10000.0, "rope_type": "yarn", "llama_4_scaling_beta": 0.1}
MINICPM: Config = {"dim_model_base": 64, "scale_depth": 1.4, "scale_emb": 4.0}
MINICPM_ROPE: Config = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}
LONGCAT: Config = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "zero_expert_num": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 32,
    "n_routed_experts": 4,
    "num_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "attention_bias": False,
}
DEEPSEEK_V41: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "o_groups": 2,
    "o_lora_rank": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "compress_ratios": [0, 4, 4, 4],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3],
    "candidate_source_layer_id": 1,
    "candidate_topk_blocks": 2,
    "candidate_block_size": 2,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 3,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
}
MINIMAX_M3: Config = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "dense_intermediate_size": 128,
    "shared_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 16,
        "sparse_block_size": 4,
        "sparse_topk_blocks": 3,
        "sparse_local_block": 1,
        "sparse_attention_freq": [0, 1, 1],
    },
}

CONFIGS: dict[str, Config] = {
    "deepseek_v2": FULL | MLA | ROUTED | {"topk_method": "group_limited_greedy", "rope_scaling": YARN},
    "deepseek_v3": FULL | MLA | ROUTED | {"rope_scaling": YARN},
    "deepseek_v32": FULL | MLA | ROUTED | INDEX,
    "deepseek_v41": DEEPSEEK_V41,
    "glm4_moe_lite": FULL | MLA | ROUTED | {"num_nextn_predict_layers": 0},
    "glm_moe_dsa": FULL | MLA | ROUTED | INDEX | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "kimi_k25": {"text_config": FULL | MLA | ROUTED | {"model_type": "kimi_k2"}},
    "kimi_vl": {"text_config": FULL | MLA | ROUTED | {"model_type": "deepseek_v3"}},
    "longcat_flash": LONGCAT | MLA,
    "longcat_flash_ngram": LONGCAT | MLA | {"ngram_vocab_size_ratio": 3, "emb_neighbor_num": 3, "emb_split_num": 2},
    "minicpm3": FULL | MLA | MINICPM | {"rope_scaling": MINICPM_ROPE},
    "minimax_m3_vl": {"text_config": MINIMAX_M3},
    "mistral4": FULL | MLA | ROUTED | {"rope_parameters": MISTRAL4_ROPE},
    "youtu_llm": FULL | MLA,
}
