"""Pairs a network of mlx-lm's with the same one on our kernel, and does the same to both."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers
from mlx_bulk.runner.patched_layers.mended_layers import mend_layers

from . import tiny

Change = Callable[[Any], Any]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases and pairs of neighbours": {"attention_bias": True, "mlp_bias": True, "rope_traditional": True},
    "llama, linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama, llama3 rope": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}},
    "llama, heads of 20": {"head_dim": 20},
    "qwen2": {"head_dim": None},
    "qwen3": {},
    "llama, yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "phi3": {},
    "phi3, longrope": {
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0, 1.1, 1.3, 2.0, 3.0, 4.0]},
    },
    "phi3, half of a head turned": {"partial_rotary_factor": 0.5},
    "granite": {
        "attention_bias": True,
        "mlp_bias": True,
        "attention_multiplier": 0.2,
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 0.2,
    },
    "olmo2": {},
    "ernie4_5": {"use_bias": True},
    "helium": {"attention_bias": True, "mlp_bias": True},
    "internlm3": {"qkv_bias": True, "bias": True},
    "mimo": {"num_nextn_predict_layers": 0},
    "seed_oss": {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    "glm4": {"attention_bias": True, "partial_rotary_factor": 0.5, "rope_traditional": True},
    "gemma": {"num_key_value_heads": 1},
    "qwen2_moe": {**tiny.CONFIGS["qwen3_moe"], "head_dim": None, "shared_expert_intermediate_size": 32},
    "qwen3_moe": tiny.CONFIGS["qwen3_moe"],
    "mixtral": tiny.CONFIGS["mixtral"],
    "ernie4_5_moe": {
        **tiny.CONFIGS["mixtral"],
        "use_bias": True,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_layer_start_index": 1,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 1,
    },
    "dots1": {
        **tiny.CONFIGS["mixtral"],
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    "olmoe": {**tiny.CONFIGS["mixtral"], "num_experts": 4, "norm_topk_prob": True, "attention_bias": False, "mlp_bias": False},
    "gemma2": {"query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 30.0},
}
QUICK = ("llama", "qwen3", "phi3", "granite", "olmo2", "mixtral", "gemma2")  # each layout
WINDOWED: dict[str, dict[str, Any]] = {"gemma3_text": tiny.CONFIGS["gemma3_text"]}  # a window of 8 tokens in one of two layers
HALVES = (
    "ernie4_5_moe",
    "dots1",
    "qwen2_moe",
    "qwen3_moe",
    "mixtral",
    "olmoe",
)  # of their blocks the kernel has the first half


def network(kind: str = "llama") -> Any:
    """A tiny network with random weights, the same each time, norms and biases too."""
    name = kind.partition(" ")[0].strip(",")
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    config = {**tiny.CONFIGS["llama"], "num_hidden_layers": 2, **(KINDS | WINDOWED)[kind], "model_type": name}
    found = module.Model(module.ModelArgs.from_dict({key: value for key, value in config.items() if value is not None}))

    def spread(_: str, w: mx.array) -> mx.array:
        return w * 3 if w.ndim == 2 else w + 0.3 * mx.random.normal(w.shape)

    mend_layers(found)
    found.update(tree_map_with_path(spread, found.parameters()))
    mx.eval(found.parameters())
    return found.eval()


def ids(rows: int, n: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, tiny.VOCABULARY, (rows, n)).astype(np.int32))


def close(found: mx.array, truth: mx.array) -> None:
    """Rounding alone: 1e-4 of a spread above 1, the contract's for float32."""
    right = np.array(truth)
    assert right.std() > 1
    np.testing.assert_allclose(np.array(found), right, rtol=0, atol=1e-4 * float(right.std()))


class Both:
    """A network of mlx-lm's and one with the kernel, to which the same is done. Logits of each call are held against each other."""

    def __init__(self, kind: str = "llama"):
        self.networks = [network(kind), network(kind)]
        patch_layers(self.networks[1])

    @property
    def used(self) -> set[str]:
        """Kernels of layers that have computed something since it was cleared."""
        return context_of(self.networks[1]).used

    def caches(self, rows: int, padded: bool) -> list[Any]:
        """Of each network, one a layer."""
        return [make_caches(each, rows, padded) for each in self.networks]

    def call(self, tokens: mx.array, caches: list[Any], fast: bool = True, lengths: Sequence[int] | None = None) -> None:
        """Pads behind the first ``lengths`` tokens of a row are nobody's."""
        truth = self.networks[0](tokens, cache=caches[0])
        self.used.clear()
        found = self.networks[1](tokens, cache=caches[1])
        assert ("block" in self.used) == fast
        rows = [slice(None)] * len(tokens) if lengths is None else [slice(n) for n in lengths]
        close(*(mx.concatenate([row[own] for row, own in zip(logits, rows, strict=True)]) for logits in (found, truth)))

    def steps(self, rows: int, n: int, caches: list[Any], seed: int = 7) -> None:
        for i in range(n):
            self.call(ids(rows, 1, seed + i), caches)

    def each(self, change: Change) -> None:
        for each in self.networks:
            change(each)
