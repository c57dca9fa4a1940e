"""Our attention for CUDA in place of mlx-lm's, in the calls that it is made for: see ``kernels/cuda/attention.py``."""

import logging
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from ...kernels.cuda import attention
from ..caches.padded_kv_cache import first_keys
from ..core.errors import first_line, is_out_of_memory

log = logging.getLogger("mlx_bulk")

_tried: dict[tuple[Any, ...], bool] = {}  # whether the kernel runs, for each kind of arrays


def attend_on_cuda(queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, mask: Any, sinks: Any = None) -> mx.array:
    """Takes the place of mlx-lm's function of this signature."""
    if isinstance(mask, mx.array) and not hasattr(cache, "bits"):
        if queries.shape[2] == 1 and sinks is None:
            found = _of_padded_rows(queries, keys, values, scale, mask)
            if found is not None:
                return found
        elif queries.shape[2] > 1 and attention.suits_products(queries, keys, values, mask):
            return attention.by_products(queries, keys, values, scale, mask, sinks)
    return base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)


def _of_padded_rows(queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array) -> mx.array | None:
    """Returns the kernel's result; None where it does not serve."""
    first = first_keys(mask)
    if first is None or mask.shape[-1] != keys.shape[2] or not attention.suits(queries, keys, values):
        return None
    kind = (queries.dtype, queries.shape[1], *keys.shape[1::2])
    if kind not in _tried:
        _tried[kind] = _runs(queries, keys, values, scale, first)
    return attention.of_padded_rows(queries, keys, values, scale, first) if _tried[kind] else None


def _runs(*arguments: Any) -> bool:
    """Returns whether the kernel compiles and runs; says so where it does not."""
    try:
        mx.eval(attention.of_padded_rows(*arguments))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        log.warning("mlx-lm's own attention stays in place, slower on this GPU: ours cannot be compiled (%s)", first_line(error))
        return False
    return True
