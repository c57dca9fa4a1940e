"""Puts fast kernels into models for a test, and takes them out again; calls llama's attention as its layers do."""

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.layers.kernel_injection import substitute
from mlx_lm.models.cache import KVCache

from . import tiny

llama: Any = importlib.import_module("mlx_lm.models.llama")

needed = pytest.mark.skipif(native.library() is None, reason="they serve the CPU, with g++")

DENSE = ("linear", "norm", "rotation")
USED = {
    "llama": ("attention", "block", *DENSE, "swiglu"),
    "qwen3": ("attention", "block", *DENSE, "swiglu"),
    "gemma3_text": ("attention", "block", "gelu", *DENSE),
    "qwen3_moe": ("attention", "block", "experts", *DENSE, "swiglu"),
    "mixtral": ("attention", "block", "experts", *DENSE, "swiglu"),
    "gpt_oss": ("attention", "experts", *DENSE, "swiglu"),
    "mamba": ("convolution", "linear", "norm", "silu", "swiglu"),
    "mamba2": ("convolution", "linear", "norm", "silu", "state space", "swiglu"),
    "lfm2": ("attention", "convolution", *DENSE, "swiglu"),
    "qwen3_next": ("attention", "convolution", "experts", "gated delta", *DENSE, "silu", "swiglu"),
    "gemma2": ("attention", "block", "gelu", *DENSE),
}


@contextmanager
def originals() -> Generator[None]:
    """Before and behind it mlx-lm is as it came."""
    networks = [tiny.build(name) for name in USED]
    for network in networks:
        kernel_injection.restore(network.eval())
    yield
    for network in networks:
        kernel_injection.restore(network)


def put(name: str) -> Any:
    """The tiny network of this name with all that serves it."""
    network = tiny.build(name)
    assert substitute(network, tiny.VOCABULARY, tiny.CONFIGS[name].get("sliding_window")) == USED[name]
    return network


def call(**changed: Any) -> tuple[mx.array, bool]:
    """llama's attention as its layers call it, and whether the substitute computed it."""
    q, kv = mx.random.normal((1, 4, 3, 16)), mx.random.normal((1, 2, 3, 16))
    arguments: dict[str, Any] = {"queries": q, "keys": kv, "values": kv, "cache": KVCache(), "scale": 0.25, "mask": "causal"} | changed
    kernel_injection.functions_used.clear()
    found = llama.scaled_dot_product_attention(**arguments)
    return found, "attention" in kernel_injection.functions_used
