"""Tiny configurations of dense decoders with full attention: the Llama family, its relatives, and the older ones.

Plain dicts, as a config.json of each would say it.
"""

from typing import Any

Config = dict[str, Any]

VOCABULARY = 100
BASE: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
HEADS = BASE | {"head_dim": 16}
LLAMA = HEADS | {"attention_bias": False, "mlp_bias": False}
TIED: Config = {"tie_word_embeddings": True}
BIASED: Config = {"attention_bias": True, "mlp_bias": True}
GRANITE: Config = {"logits_scaling": 0.5, "attention_multiplier": 0.25, "embedding_multiplier": 4.0, "residual_multiplier": 0.8}
GPT2: Config = {
    "n_ctx": 512,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 512,
    "layer_norm_epsilon": 1e-5,
    "vocab_size": VOCABULARY,
}
AFM7: Config = {"hidden_dim": 64, "num_layers": 4, "num_kv_reuse_layers": 2, "num_heads": 4, "num_kv_heads": 2}
OPENELM: Config = {
    "head_dim": 16,
    "num_transformer_layers": 3,
    "model_dim": 64,
    "vocab_size": VOCABULARY,
    "ffn_dim_divisor": 16,
    "num_query_heads": [4, 4, 8],
    "num_kv_heads": [1, 2, 4],
    "ffn_multipliers": [0.5, 1.0, 2.0],
}
LILLE: Config = {
    "block_size": 512,
    "layer_norm_eps": 1e-5,
    "n_embd": 64,
    "n_head": 4,
    "n_kv_heads": 2,
    "n_layer": 3,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
}
PHIXTRAL: Config = {
    "num_vocab": VOCABULARY,
    "model_dim": 64,
    "num_heads": 4,
    "num_layers": 3,
    "rotary_dim": 8,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
}
PHI3SMALL: Config = BASE | {
    "dense_attention_every_n_layers": 2,
    "ff_intermediate_size": 128,
    "gegelu_limit": 20.0,
    "layer_norm_epsilon": 1e-5,
    "rope_embedding_base": 1000000,
    "blocksparse_block_size": 32,  # the model file takes 32 or 64
    "blocksparse_num_local_blocks": 1,
    "blocksparse_vert_stride": 2,
    "vocab_size": 100352,  # the model file writes to these ids of dummy tokens, whatever the vocabulary
    "mup_embedding_multiplier": 4.0,
    "mup_width_multiplier": 1.0,
}
BLOCKS: list[Config] = [  # a block that attends, one whose attention is a linear layer, one without attention, one without an MLP
    {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
    {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.0}},
    {"attention": {"no_op": True}, "ffn": {"replace_with_linear": True}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
]

CONFIGS: dict[str, Config] = {
    "afm7": AFM7 | {"vocab_size": VOCABULARY, "rope_theta": 50000.0},
    "apertus": LLAMA | {"post_norm": False, "qk_norm": True},
    "cohere": BASE | {"num_key_value_heads": 2, "layer_norm_eps": 1e-5, "logit_scale": 0.8, "use_qk_norm": True},
    "ernie4_5": HEADS | TIED | {"use_bias": True},
    "exaone": HEADS | {"num_layers": 3, "layer_norm_epsilon": 1e-5, "attention_bias": False, "mlp_bias": False},
    "gemma": HEADS | TIED,
    "gemma2": HEADS | TIED | {"query_pre_attn_scalar": 16.0, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "glm": HEADS | {"attention_bias": True, "partial_rotary_factor": 0.5},
    "glm4": HEADS | {"attention_bias": True, "partial_rotary_factor": 0.5},
    "gpt2": GPT2,
    "gpt_bigcode": GPT2 | {"n_inner": 128, "multi_query": True},
    "gpt_neox": BASE
    | {"num_key_value_heads": 4, "intermediate_size": 256, "layer_norm_eps": 1e-5, "rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gptj": GPT2 | {"rotary_dim": 8},
    "granite": LLAMA | TIED | GRANITE,
    "helium": LLAMA,
    "hunyuan_v1_dense": HEADS | {"use_qk_norm": True},
    "internlm2": BASE | {"bias": True},
    "internlm3": HEADS | {"bias": True, "qkv_bias": True},
    "lille-130m": LILLE,
    "llama": LLAMA,
    "mimo": BASE | {"num_nextn_predict_layers": 1},
    "minicpm": BASE | {"dim_model_base": 64, "scale_depth": 1.4, "scale_emb": 4.0},
    "nanbeige": LLAMA | {"num_loops": 2},
    "nanochat": BASE,
    "nemotron": HEADS | {"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "nemotron-nas": BASE | {"num_hidden_layers": 4, "block_configs": BLOCKS},
    "olmo2": LLAMA,
    "openelm": OPENELM,
    "phi": BASE | {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
    "phi3": BASE,
    "phi3small": PHI3SMALL | {"num_hidden_layers": 4},
    "phixtral": PHIXTRAL,
    "plamo": BASE | {"n_shared_head": 2},
    "qwen": BASE | {"num_key_value_heads": 4, "kv_channels": 16, "layer_norm_epsilon": 1e-5, "no_bias": True},
    "qwen2": BASE,
    "qwen3": HEADS,
    "seed_oss": HEADS | {"attention_bias": True, "attention_out_bias": False},
    "smollm3": LLAMA | {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
    "stablelm": BASE | {"use_qkv_bias": True, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5, "qk_layernorm": True},
    "starcoder2": BASE | TIED | {"norm_epsilon": 1e-5},
    "talkie": HEADS | {"num_key_value_heads": 4},
    "telechat3": LLAMA,
}
