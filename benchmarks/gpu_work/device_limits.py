"""Measures what a device reaches at best: bytes a second, operations a second, the time of a round trip. No data sheet is asked.

A decode step reads all weights and all keys and values, so it takes at least their bytes over the bandwidth; and it multiplies, so it
takes at least its operations over those a second. ``Limits.step`` and ``Limits.tokens`` give the larger of the two.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from networks.random_models import GROUP, Variant, mx

COPIED = 1 << 30  # bytes of the array that is copied, at most an eighth of memory
WIDTHS = (256, 1024, 2048, 4096, 8192)  # of square products; no wider one after the first that takes long
LONG = 0.02  # seconds
TIMES = 5


@dataclass(slots=True, frozen=True)
class DeviceLimits:
    """Bytes a second of a copy (read and written), FLOP a second of products (bfloat16, weights of 4 bits), seconds of a round trip."""

    bandwidth: float
    flops: float
    flops_4bit: float
    round_trip: float

    def step(self, variant: Variant, rows: int, keys: float, cache: float = 1.0) -> dict[str, float]:
        """Seconds that a decode step of ``rows`` rows, each with ``keys`` cached tokens, takes at least: to read, and to multiply.

        cache: bytes of the KV cache, as a share of those in bfloat16.
        """
        config = variant.config
        touched = None
        if "num_experts" in config:  # each row picks some: with many rows nearly all are read
            experts, picked = config["num_experts"], config["num_experts_per_tok"]
            touched = round(experts * (1 - (1 - picked / experts) ** rows))
        weights = (variant.weights(touched) + variant.head) * variant.parameter_bytes
        read = weights + rows * keys * variant.kv_bytes * cache
        return {"read": read / self.bandwidth, "multiply": self._products(variant, rows, rows * keys, rows)}

    def tokens(self, variant: Variant, tokens: int, keys: float, logits: int) -> float:
        """Seconds that a forward pass over many tokens takes at least. keys: that they attend to, in sum; logits: rows of logits."""
        return self._products(variant, tokens, keys, logits)

    def _products(self, variant: Variant, tokens: int, keys: float, logits: int) -> float:
        config = variant.config
        weights = variant.weights(config.get("num_experts_per_tok"))
        attention = 4 * config["num_hidden_layers"] * config["num_attention_heads"] * config["head_dim"] * keys
        rate = self.flops_4bit if variant.four_bits else self.flops
        return 2 * (weights * tokens + variant.head * logits) / rate + attention / self.flops

    def to_json(self) -> dict[str, Any]:
        """In units that people read."""
        return {
            "bandwidth_gb_s": round(self.bandwidth / 1e9, 1),
            "tflops_bfloat16": round(self.flops / 1e12, 2),
            "tflops_4bit": round(self.flops_4bit / 1e12, 2),
            "round_trip_us": round(self.round_trip * 1e6, 1),
            "exact": asdict(self),
        }


def measured(memory: int) -> DeviceLimits:
    """Measures them; ``memory`` in bytes."""
    count = min(COPIED, memory // 8) // 2
    values = mx.zeros((count,), mx.bfloat16)
    mx.eval(values)
    copy = best(lambda: values + 1)
    flops, flops_4bit = (_flops(product) for product in (_half, _quantized))
    one = mx.zeros((1,))
    return DeviceLimits(2 * values.nbytes / copy, flops, flops_4bit, best(lambda: one + 1))


def best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of some runs, the first left out."""
    mx.eval(work())
    seconds: list[float] = []
    for _ in range(TIMES):
        mx.synchronize()
        began = time.perf_counter()
        mx.eval(work())
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _half(width: int) -> Callable[[], Any]:
    a, b = (mx.random.normal((width, width), mx.bfloat16) for _ in range(2))
    mx.eval(a, b)
    return lambda: a @ b.T


def _quantized(width: int) -> Callable[[], Any]:
    x = mx.random.normal((width, width), mx.bfloat16)
    weights, scales, biases = mx.quantize(mx.random.normal((width, width), mx.bfloat16), group_size=GROUP, bits=4)
    mx.eval(x, weights, scales, biases)
    return lambda: mx.quantized_matmul(x, weights, scales, biases, transpose=True, group_size=GROUP, bits=4)


def _flops(product: Callable[[int], Callable[[], Any]]) -> float:
    reached = 0.0
    for width in WIDTHS:
        began = time.perf_counter()
        seconds = best(product(width))
        took = time.perf_counter() - began - TIMES * seconds
        print(f"{product.__name__} {width}: {1e3 * seconds:.2f} ms, ready after {took:.1f} s", file=sys.stderr, flush=True)
        reached = max(reached, 2 * width**3 / seconds)
        if seconds > LONG:
            break
    return reached
