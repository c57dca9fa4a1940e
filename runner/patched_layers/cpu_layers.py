"""mlx's projections, norms and activations with our CPU kernels, as classes derived from mlx's own.

A layer of such a class computes its output when it is called, where mlx would only build a lazy graph. In training, and for inputs
that the kernels are not made for, it does what its base class does.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from numpy.typing import NDArray

from ...kernels import attention, elementwise, grouped_linear, linear, native
from ...kernels.fused_logprobs import Product
from ...kernels.quantized import Matrix, QuantizedWeight
from .call_context import BUILT, CallContext, ListedProduct
from .mended_layers import CappedAttention

Made = TypeVar("Made")


def run_kernel(used: set[str], name: str, fast: Callable[[], Made], original: Callable[[], Made]) -> Made:
    """Returns what ``fast`` computes with the kernel ``name``, and notes it in ``used``. While mlx traces a call ``original`` computes."""
    try:
        result = fast()
    except native.Traced:
        return original()
    used.add(name)
    return result


def listed_product(layer: Any, array: mx.array, x: mx.array, weight: Matrix, bias: mx.array | None = None) -> mx.array:
    """Returns the lazy ``array`` itself; adds its product to the call's list, if it keeps one."""
    listed = layer._context.listed
    if listed is not None:
        listed.append(ListedProduct(array, Product(x, weight, bias, packing=packing_of(layer, weight, bias))))
    return array


def computes_now(context: CallContext, x: mx.array, weight: Matrix, bias: mx.array | None = None) -> bool:
    """Returns True when the kernel computes a product now. Logits may stay unread."""
    read = weight.shape[0] != context.vocabulary or context.reads_logits
    return context.listed is None and read and linear.suits(x, weight, bias)


def packing_of(layer: Any, weight: Matrix, bias: mx.array | None = None) -> NDArray[np.float32] | None:
    """Returns a layer's weight and bias packed, which the layer holds from then on; None where it is not to hold them. Raises Traced."""
    if not layer._context.packs or not linear.packs(weight):
        return None
    held = linear.packed_once(layer.__dict__.get(BUILT), weight, bias)
    object.__setattr__(layer, BUILT, held)  # not among the layer's parameters
    return held.packed


def product_now(layer: Any, x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Computes a layer's product now."""
    return linear.on_cpu(x, weight, bias, packing_of(layer, weight, bias))


class FastLinear(nn.Linear):
    """``nn.Linear`` with the kernel for matrix products."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        weight, bias = self["weight"], self.get("bias")
        if self.training or not computes_now(self._context, x, weight, bias):
            return listed_product(self, super().__call__(x), x, weight, bias)
        return run_kernel(
            self._context.used, "linear", lambda: product_now(self, x, weight, bias), lambda: super(FastLinear, self).__call__(x)
        )


class FastSwitchLinear(SwitchLinear):
    """mlx-lm's ``SwitchLinear``, an expert's projection, with the rows of each expert multiplied at once."""

    _context: CallContext

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [..., 1, K], indices [...] -> [..., 1, N]."""
        weight, bias = self["weight"], self.get("bias")
        if self.training or not grouped_linear.suits(x, weight, indices, bias):
            return super().__call__(x, indices, sorted_indices)
        return run_kernel(
            self._context.used,
            "experts",
            lambda: grouped_linear.on_cpu(x, weight, indices, bias, packing_of(self, weight, bias)),
            lambda: super(FastSwitchLinear, self).__call__(x, indices, sorted_indices),
        )


class FastMultiLinear(MultiLinear):
    """mlx-lm's ``MultiLinear``, a projection of each head (multi-head latent attention), with the kernels for matrix products."""

    _context: CallContext

    def __call__(self, x: mx.array, transpose: bool = True) -> mx.array:
        """x [B, H or 1, T, K] times weight [H, N, K] -> [B, H, T, N]; without ``transpose`` x [B, H or 1, T, N] -> [B, H, T, K]."""
        weight: mx.array = self["weight"]
        heads, n, depth = weight.shape if transpose else (weight.shape[0], *weight.shape[:0:-1])
        fits = x.ndim == 4 and x.shape[1] in (1, heads) and x.shape[3] == depth and x.size > 0
        if self.training or not fits or not linear.takes_arrays(x, weight):
            return super().__call__(x, transpose)

        def fast() -> mx.array:
            held = weight if transpose else mx.contiguous(weight.swapaxes(1, 2))
            if x.shape[1] < heads:  # all heads share x: one product
                made = linear.on_cpu(x[:, 0], held.reshape(heads * n, depth))
                return made.reshape(*made.shape[:2], heads, n).transpose(0, 2, 1, 3)
            of_heads = mx.broadcast_to(mx.arange(heads)[:, None], x.shape[:3])
            return grouped_linear.on_cpu(x[..., None, :], held, of_heads)[..., 0, :]

        return run_kernel(self._context.used, "linear", fast, lambda: super(FastMultiLinear, self).__call__(x, transpose))


class FastQuantizedLinear(nn.QuantizedLinear):
    """``nn.QuantizedLinear`` with the kernel for matrix products."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        weight, bias = QuantizedWeight.of(self), self.get("bias")
        if self.training or weight is None:
            return super().__call__(x)
        if not computes_now(self._context, x, weight, bias):
            return listed_product(self, super().__call__(x), x, weight, bias)
        fast = linear.on_cpu
        return run_kernel(self._context.used, "linear", lambda: fast(x, weight, bias), lambda: super(FastQuantizedLinear, self).__call__(x))


class FastQuantizedSwitchLinear(QuantizedSwitchLinear):
    """mlx-lm's ``QuantizedSwitchLinear`` with the rows of each expert multiplied at once."""

    _context: CallContext

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [..., 1, K], indices [...] -> [..., 1, N]."""
        weight, bias = QuantizedWeight.of(self), self.get("bias")
        if self.training or weight is None or self.get("global_scale") is not None or not grouped_linear.suits(x, weight, indices, bias):
            return super().__call__(x, indices, sorted_indices)
        return run_kernel(
            self._context.used,
            "experts",
            lambda: grouped_linear.on_cpu(x, weight, indices, bias),
            lambda: super(FastQuantizedSwitchLinear, self).__call__(x, indices, sorted_indices),
        )


NORM_CLASSES: dict[type, float] = {}  # classes made by ``rms_norm_class``, and what each adds to its weights


def rms_norm_class(original: Any, more: float) -> Any:
    """Makes a class of an RMS norm that computes in one pass. ``more`` is 1 where its weights are held as their distance from 1."""

    class FastRMSNorm(original):
        """An RMS norm in one pass."""

        _context: CallContext

        def __call__(self, x: mx.array) -> mx.array:
            """x [..., D] -> the same shape."""
            weight = self["weight"]
            if self.training or not elementwise.suits_rms_norm(x, weight):
                return super().__call__(x)
            return run_kernel(
                self._context.used,
                "norm",
                lambda: elementwise.rms_norm_on_cpu(x, weight, self.eps, more),
                lambda: super(FastRMSNorm, self).__call__(x),
            )

    NORM_CLASSES[FastRMSNorm] = more
    return FastRMSNorm


FastRMSNorm = rms_norm_class(nn.RMSNorm, 0.0)


class FastLayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` in one pass."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., D] -> the same shape."""
        weight, bias = self.get("weight"), self.get("bias")
        if self.training or not elementwise.suits_layer_norm(x, weight, bias):
            return super().__call__(x)
        return run_kernel(
            self._context.used,
            "norm",
            lambda: elementwise.layer_norm_on_cpu(x, weight, bias, self.eps),
            lambda: super(FastLayerNorm, self).__call__(x),
        )


class FastGELU(nn.GELU):
    """``nn.GELU``: the exact one and its tanh form."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [...] -> the same shape."""
        kernel = {"none": elementwise.gelu_on_cpu, "precise": elementwise.gelu_approx_on_cpu, "tanh": elementwise.gelu_approx_on_cpu}
        fast = kernel.get(self._approx)
        if self.training or fast is None or not native.suits(x):
            return super().__call__(x)
        return run_kernel(self._context.used, "gelu", lambda: fast(x), lambda: super(FastGELU, self).__call__(x))


class FastCappedAttention(CappedAttention):
    """``CappedAttention`` with the kernel for attention."""

    _context: CallContext

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """x [B, T, D] -> the same shape."""
        if self.training or x.ndim != 3 or not native.suits(x) or hasattr(cache, "bits"):
            return super().__call__(x, mask, cache)
        b, t, _ = x.shape
        q, k, v = (
            project(x).reshape(b, t, heads, -1).transpose(0, 2, 1, 3)
            for project, heads in ((self.q_proj, self.n_heads), (self.k_proj, self.n_kv_heads), (self.v_proj, self.n_kv_heads))
        )
        offset = 0 if cache is None else cache.offset
        q, k = self.rope(q, offset=offset), self.rope(k, offset=offset)
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        how: tuple[Any, ...] = (self.scale, mask, None, self.attn_logit_softcapping)
        if attention.suits(q, k, v, mask):
            out = run_kernel(
                self._context.used, "attention", lambda: attention.on_cpu(q, k, v, *how), lambda: attention.reference(q, k, v, *how)
            )
        else:
            out = attention.reference(q, k, v, *how)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(b, t, -1))


class FastSwigluOAI(SwigluOAI):
    """mlx-lm's ``SwigluOAI``, a gated activation with clamped inputs."""

    _context: CallContext

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        """x, gate [...] -> the same shape."""
        if self.training or x.shape != gate.shape or not native.suits(x, gate):
            return super().__call__(x, gate)
        return run_kernel(
            self._context.used,
            "swiglu",
            lambda: elementwise.clamped_swiglu_on_cpu(gate, x, self._alpha, self._limit),
            lambda: super(FastSwigluOAI, self).__call__(x, gate),
        )
