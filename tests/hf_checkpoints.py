"""Tiny random checkpoints of six architectures as transformers saves them, with the demo's tokenizer: what both sides load.

Weights are scaled so that logprobs spread by more than 1: a wrong token, a pad attended or a shifted target then shows.
"""

from pathlib import Path
from typing import Any

from .checkpoints import BOS, EOS, VOCABULARY, copy_tokenizer

CONTEXT = 128
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": None,
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
GEMMA: dict[str, Any] = {
    "sliding_window": 32,
    "num_hidden_layers": 6,  # of which the last is full, as in every Gemma 3
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 100000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
NEOX: dict[str, Any] = {
    "hidden_act": "gelu_new",  # mlx-lm has the tanh form alone; with the other the two differ by 1e-3
    "intermediate_size": 256,  # mlx-lm takes four times the hidden size for granted
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
# The config's class in transformers, and what differs from SIZES.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", ROPE),
    "qwen3": ("Qwen3Config", ROPE),
    "gemma3": ("Gemma3TextConfig", GEMMA),
    "mixtral": ("MixtralConfig", {**ROPE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_neox": ("GPTNeoXConfig", NEOX),
    "olmo2": ("Olmo2Config", ROPE),
}
SPREAD = 8.0  # on each weight matrix


def write_hf_checkpoint(folder: Path, architecture: str) -> Path:
    """Writes a model of the architecture in float32, the same each time, with the demo's tokenizer, into ``folder``."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers
    from transformers import AutoModelForCausalLM

    name, differs = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**{**SIZES, **differs})
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(SPREAD)
    model.save_pretrained(folder)
    copy_tokenizer(folder)
    return folder


def torch_model(folder: Path) -> Any:
    """The checkpoint as transformers loads it, in float32 on the CPU."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
