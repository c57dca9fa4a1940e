"""Makes tiny random models of many families, and prompts for them.

Weights are scaled so that log-probabilities spread by more than 1: an error in attention then shows.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_bulk.runner.patched_layers.mended_layers import mend_layers
from numpy.typing import NDArray

VOCABULARY = 256
WINDOW = 8  # Gemma 3's sliding window

Network = Any
Ids = list[int]

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}
_RECURRENT: dict[str, Any] = {
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
_MAMBA2 = {"num_heads": 4, "head_dim": 32, "n_groups": 1, "time_step_limit": [0.0, 100.0], "layer_norm_epsilon": 1e-5, "expand": 2}
_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_LFM2: dict[str, Any] = {  # half its layers are convolutions with a state, half attend
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_ff_dim": 128,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "full_attn_idxs": [1],
}
_QWEN3_NEXT: dict[str, Any] = {  # one of its two layers holds a gated delta rule
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "shared_expert_intermediate_size": 32,
    "partial_rotary_factor": 0.5,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "qwen3": _BASE,
    "gemma3_text": _BASE | {"query_pre_attn_scalar": 16, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "qwen3_moe": _BASE | _MOE,
    "mixtral": _BASE | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": _BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "mamba2": _RECURRENT | _MAMBA2 | {"tie_word_embeddings": False},
    "mamba": _RECURRENT,
    "lfm2": _BASE | _LFM2,
    "qwen3_next": _BASE | _MOE | _QWEN3_NEXT,
    # its window is the whole context: mlx-lm's Gemma 2 knows no smaller one
    "gemma2": _BASE | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
}
# At 3 gemma2's logits spread by 6, and a row four times in one call of mlx-lm differs by 1.5e-4 from once. qwen3_next's states carry a
# rounding on from token to token, until it is 2e-4. So do mamba's: kernels and BLAS that round in other ways lie 1e-4 apart at 3, and
# 4e-4 at 2.6.
SCALES = {"gemma2": 1.5, "qwen3_next": 1.9, "mamba": 1.9}
PADDED = ("llama", "qwen3", "gemma2", "gemma3_text", "qwen3_moe", "mixtral", "gpt_oss", "mamba2", "lfm2", "qwen3_next")
JOINED = ("mamba",)  # mlx-lm's `mamba` feeds pads to its state
EXACT = ("mamba",)  # what is wrong with pads
LENGTHS = (5, 30, 1, 17, 17, 9, 2, 40, 3, 12, 1, 2)


_built: dict[str, tuple[Network, dict[str, mx.array]]] = {}  # with the weights that each was built with


def build(name: str) -> Network:
    """``fresh``, once for all tests of a process: who changes it, puts it back."""
    if name not in _built:
        network = fresh(name)
        _built[name] = network, {key: mx.array(np.array(weight)) for key, weight in weights_of(network).items()}
    return _built[name][0]


def weights_of(network: Network) -> dict[str, mx.array]:
    return dict(tree_flatten(network.parameters()))


def forget_changed() -> list[str]:
    """Forgets the models of ``build`` whose weights are no longer those that they were built with. Returns their names."""
    changed = [name for name, (network, weights) in _built.items() if not _same(weights_of(network), weights)]
    for name in changed:
        del _built[name]
    return changed


def _same(found: dict[str, mx.array], weights: dict[str, mx.array]) -> bool:
    def equal(a: mx.array, b: mx.array) -> bool:
        return a.dtype == b.dtype and a.shape == b.shape and bool(mx.array_equal(a, b))

    return found.keys() == weights.keys() and all(equal(found[name], weights[name]) for name in weights)


def fresh(name: str = "llama") -> Network:
    """A model with random weights, the same each time; its layers mended as in a loaded model."""
    network = as_it_came(name)
    mend_layers(network)
    return network


def as_it_came(name: str) -> Network:
    """The same model with mlx-lm's layers alone."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    network = module.Model(module.ModelArgs.from_dict({**CONFIGS[name], "model_type": name}))
    scale = SCALES.get(name, 3.0)
    network.update(tree_map_with_path(lambda key, w: w * (scale if "weight" in key and w.ndim == 2 else 1.0), network.parameters()))
    mx.eval(network.parameters())
    return network


def prompts_of(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


class Chain:
    """A model whose next-token logits depend on the newest token alone: ``table`` [V, V]. It needs no cache.

    What the engine does with logits can be stated exactly with it.
    """

    def __init__(self, table: NDArray[np.float32]):
        self.table = mx.array(table)
        self.vocabulary = table.shape[1]

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.table[tokens]


def random_chain(vocabulary: int, seed: int = 0, spread: float = 2.0) -> Chain:
    return Chain(np.random.default_rng(seed).normal(0, spread, (vocabulary, vocabulary)).astype(np.float32))
