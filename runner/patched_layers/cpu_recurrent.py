"""What recurrent layers are made of, with our CPU kernels: the scan of state space models, the gated delta rule, short convolutions.

Each calls mlx-lm's own where the kernel does not serve. ``used`` takes the names of the kernels that have computed.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import gated_delta as mlx_gated_delta
from mlx_lm.models import ssm as mlx_ssm

from ...kernels.recurrent import gated_delta, short_convolution, state_space
from .call_context import CallContext
from .cpu_layers import run_kernel

States = tuple[mx.array, mx.array]


def fast_state_space(used: set[str]) -> Callable[..., States]:
    """Returns ``mlx_lm.models.ssm.ssm_update`` with the kernel."""
    original: Callable[..., States] = mlx_ssm.ssm_update

    @wraps(original)
    def ssm_update(
        x: mx.array,
        a_log: mx.array,
        b: mx.array,
        c: mx.array,
        d: mx.array,
        dt: mx.array,
        dt_bias: mx.array,
        state: mx.array | None = None,
        time_step_limit: tuple[float, float] = (0.001, 100.0),
        mask: mx.array | None = None,
        lengths: mx.array | None = None,
    ) -> States:
        def by_mlx() -> States:
            return original(x, a_log, b, c, d, dt, dt_bias, state, time_step_limit, mask, lengths)

        def by_kernel() -> States:
            rates = -mx.exp(a_log.astype(mx.float32))
            return state_space.on_cpu(x, step, rates, b, c, d.astype(mx.float32), state, mask, lengths)

        step = mlx_ssm.compute_dt(dt, dt_bias, time_step_limit)
        if not state_space.suits(x, step, b, c, state, mask):
            return by_mlx()
        return run_kernel(used, "state space", by_kernel, by_mlx)

    return ssm_update


def fast_gated_delta(used: set[str]) -> Callable[..., States]:
    """Returns ``mlx_lm.models.gated_delta.gated_delta_update`` with the kernel."""
    original: Callable[..., States] = mlx_gated_delta.gated_delta_update

    @wraps(original)
    def gated_delta_update(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        a: mx.array,
        b: mx.array,
        a_log: mx.array,
        dt_bias: mx.array,
        state: mx.array | None = None,
        mask: mx.array | None = None,
        *,
        lower_bound: float | None = None,
        allow_neg_eigval: bool = False,
        **more: Any,
    ) -> States:
        def by_mlx() -> States:
            return original(q, k, v, a, b, a_log, dt_bias, state, mask, lower_bound=lower_bound, allow_neg_eigval=allow_neg_eigval, **more)

        beta = mx.sigmoid(b) * (2.0 if allow_neg_eigval else 1.0)
        if lower_bound is None:
            kept: mx.array = mlx_gated_delta.compute_g(a_log, a, dt_bias)
        else:
            kept = mlx_gated_delta.compute_lower_bound_g(a_log, a, dt_bias, lower_bound)
        if not gated_delta.suits(q, k, v, kept, beta, state, mask):
            return by_mlx()
        return run_kernel(used, "gated delta", lambda: gated_delta.on_cpu(q, k, v, kept, beta, state, mask), by_mlx)

    return gated_delta_update


class FastConv1d(nn.Conv1d):
    """``nn.Conv1d`` with the kernel for a convolution of each channel alone."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [B, L, C] -> [B, L - S + 1, C]."""
        weight, bias = self["weight"], self.get("bias")
        plain = (self.stride, self.padding, self.dilation, self.groups) == (1, 0, 1, x.shape[-1])
        if self.training or not (plain and short_convolution.suits(x, weight, bias)):
            return super().__call__(x)
        return run_kernel(
            self._context.used,
            "convolution",
            lambda: short_convolution.on_cpu(x, weight, bias),
            lambda: super(FastConv1d, self).__call__(x),
        )


CONVOLUTIONS: dict[type, type] = {nn.Conv1d: FastConv1d}
