"""Maps architectures of the zoo to transformers: how their tiny configurations are written there.

Where transformers knows a setting by another name, or mlx-lm takes one for granted, both are given the same. Weights go the way of
a user's: saved by transformers, loaded by the runner.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .configs import CONFIGS, Config
from .windows import FULL_ATTENTION, SLIDING

GAIN = 1.3  # of a product with a weight matrix
STRAY = 0.1  # of other parameters, around what they are initialised to

ROPE: Config = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA4_SCALING: Config = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
MIXED_CONVOLUTIONS = ["conv", FULL_ATTENTION] * 2
MIMO: Config = {
    "layer_types": [FULL_ATTENTION, SLIDING, SLIDING],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "rope_parameters": {
        FULL_ATTENTION: ROPE | {"partial_rotary_factor": 0.5},
        SLIDING: ROPE | {"rope_theta": 100.0, "partial_rotary_factor": 0.5},
    },
}
NO_IDS: Config = {"pad_token_id": None, "bos_token_id": 0, "eos_token_id": 2}  # those of most configs are beyond the tiny vocabulary

# Not rounded, as in GPT-OSS's own config.json; theta and betas are such that rounding would move frequencies of a small head.
UNROUNDED: Config = {
    "rope_type": "yarn",
    "rope_theta": 80.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
}
# architecture -> its settings in transformers that differ from the tiny configuration's
COUNTERPARTS: dict[str, Config] = {
    "afmoe": {},
    "apertus": {},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "layer_types": [SLIDING, SLIDING, FULL_ATTENTION]},
    "dbrx": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "falcon_h1": {"mamba_chunk_size": 8, "mamba_n_groups": 1, "lm_head_multiplier": 1.5},  # else its logprobs hardly spread
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 512},
    "gemma3_text": {},
    "glm": {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "glm_moe_dsa": {},
    "gpt_bigcode": {"activation_function": "gelu"},
    "gpt_neox": {"hidden_act": "gelu_new"},
    "gpt_oss": {"rope_parameters": UNROUNDED},
    "gptj": {},
    "granite": {},
    "granitemoe": {},
    "helium": {},
    "hunyuan_v1_dense": {},
    "internlm3": {"bias": False, "qkv_bias": False},
    "laguna": {},
    "lfm2": {"tie_word_embeddings": True, "layer_types": MIXED_CONVOLUTIONS},
    "lfm2_moe": {"tie_word_embeddings": True, "layer_types": MIXED_CONVOLUTIONS},
    "llama": {},
    "mamba": {"tie_word_embeddings": True},
    "mamba2": {"n_groups": 1, "chunk_size": 8},
    "mellum": {},
    "minicpm3": {},
    "minimax": {"model_type": "minimax_m2"},
    "ministral3": {"sliding_window": None, "layer_types": [FULL_ATTENTION] * 3, "rope_parameters": ROPE | LLAMA4_SCALING},
    "mixtral": {},
    "nemotron": {},
    "olmo2": {},
    "olmo3": {"rope_parameters": {FULL_ATTENTION: ROPE, SLIDING: ROPE}},
    "olmoe": {},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3": {},
    "qwen3_moe": {},
    "qwen3_next": {"layer_types": ["linear_attention", FULL_ATTENTION] * 2},
    "recurrent_gemma": {"tie_word_embeddings": True, "lru_width": 64},
    "seed_oss": {},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
    "solar_open": {"first_k_dense_replace": 0},
    "stablelm": {},
    "starcoder2": {"hidden_act": "gelu"},
}
# architecture -> settings with which the two differ, and why
DIFFERENT: dict[str, tuple[Config, str]] = {
    "ernie4_5_moe": ({}, "the router's `e_score_correction_bias` is dropped at load"),
    "falcon_h1": ({"mamba_n_groups": 2}, "the gated norm of its state space is not by group (`mamba_n_groups` above 1)"),
    "gemma": ({}, "exact GELU, where the checkpoint's is the tanh form"),
    "glm": ({"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor` is not read: all dimensions are rotated"),
    "gpt_bigcode": ({"activation_function": "gelu_pytorch_tanh"}, "exact GELU whatever `activation_function` says"),
    "gpt_neox": ({"hidden_act": "gelu"}, "the tanh form of GELU whatever `hidden_act` says"),
    "jamba": ({"use_mamba_kernels": False}, "the weights of the experts chosen are normalised to 1, which Jamba's are not"),
    "mamba2": ({"n_groups": 2, "chunk_size": 8}, "the gated norm is not by group (`n_groups` above 1)"),
    "mimo_v2_flash": (MIMO, "a window of `sliding_window_size` tokens, where the token itself stands beside so many"),
    "nemotron_h": ({"n_groups": 1}, "time steps have no lower limit (`time_step_min`)"),
    "qwen2_moe": ({"norm_topk_prob": True}, "`norm_topk_prob` is not read"),
    "starcoder2": ({"hidden_act": "gelu_pytorch_tanh"}, "exact GELU whatever `hidden_act` says"),
}
# architecture -> settings with which transformers saves what mlx-lm does not load, and why
NOT_LOADED: dict[str, tuple[Config, str]] = {
    "exaone4": (
        {"sliding_window_pattern": 4, "layer_types": [SLIDING, SLIDING, FULL_ATTENTION, SLIDING]},
        "`sliding_window_pattern` is a number, and a string is asked for",
    ),
    "gemma4_text": ({}, "`global_head_dim` has become `per_layer_config`"),
    "gpt2": ({}, "parameters are named `transformer.…`"),
    "granitemoehybrid": ({"mamba_chunk_size": 8, "mamba_expand": 2}, "layers of the type `mamba` have become `linear_attention`"),
    "nanochat": ({}, "parameters have other names"),
    "olmo_hybrid": ({}, "layer norms have other names"),
    "phimoe": ({}, "projections and head have no bias unless the settings say so, and mlx-lm asks for all"),
}
# Parameters that mlx-lm has none of; in transformers they are set to zero.
LACKING = {"ernie4_5_moe": "e_score_correction_bias"}


def write_counterpart(name: str, folder: Path, more: Config | None = None, spare: Callable[[str], bool] = lambda path: False) -> Any:
    """transformers' float32 model of the architecture with random weights, the same each time, saved in ``folder``.

    ``more`` settings go before those above; parameters that ``spare`` names are set to zero.
    """
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = copy.deepcopy(CONFIGS[name] | NO_IDS | COUNTERPARTS.get(name, {}) | (more or {}))
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config.pop("model_type")](**config), dtype=torch.float32).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if spare(path):
                parameter.zero_()
            elif parameter.ndim > 1:
                fan_in = parameter[0].numel() if "conv" in path else parameter.shape[-1]
                parameter.normal_(0, GAIN / fan_in**0.5)
            else:
                parameter.add_(STRAY * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logprobs of logits [T, V], in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
