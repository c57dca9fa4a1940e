"""The scan of a state space model whose decay is a number a head (SSD, Dao and Gu 2024: Mamba 2 and the hybrids that hold it)."""

import mlx.core as mx
import numpy as np

from .. import native


def reference(
    x: mx.array,
    step: mx.array,
    decay_rates: mx.array,
    inputs: mx.array,
    outputs: mx.array,
    skip: mx.array,
    state: mx.array | None = None,
    seen: mx.array | None = None,
    lengths: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Returns y [B, T, H, D] and the state [B, H, D, N] after the last token, the specification, token by token.

    x: [B, T, H, D]; step: [B, T, H], at least 0; decay_rates, skip: [H]; inputs, outputs: [B, T, G, N] with H a multiple of G; state:
    before the first token, None for zeros. For each token: state = exp(step · rate) state + step x inputᵀ; y = state output + skip x.
    Where ``seen`` [B, T] is False, or from ``lengths`` [B] on, the state stays as it is and y is skip x.
    """
    b, t, h, d = x.shape
    inputs, outputs = (mx.repeat(each, h // each.shape[2], axis=2) for each in (inputs, outputs))
    state = mx.zeros((b, h, d, inputs.shape[-1])) if state is None else state
    made: list[mx.array] = []
    for i in range(t):
        new = mx.exp(step[:, i] * decay_rates)[..., None, None] * state + (step[:, i, :, None] * x[:, i])[..., None] * inputs[:, i, :, None]
        counts = mx.ones((b,), mx.bool_) if seen is None else seen[:, i]
        counts = (counts if lengths is None else counts & (i < lengths))[:, None, None]
        state = mx.where(counts[..., None], new, state)
        made.append(mx.where(counts, (new * outputs[:, i, :, None]).sum(-1), 0) + skip[:, None] * x[:, i])
    return mx.stack(made, axis=1), state


def suits(x: mx.array, step: mx.array, inputs: mx.array, outputs: mx.array, state: mx.array | None, seen: mx.array | None) -> bool:
    """Returns True when the library serves a call: float32 on the CPU, and shapes that fit."""
    if x.ndim != 4 or inputs.ndim != 4 or step.shape != x.shape[:3] or outputs.shape != inputs.shape or inputs.shape[:2] != x.shape[:2]:
        return False
    (b, t, h, d), (groups, n) = x.shape, inputs.shape[2:]
    if h % groups or (seen is not None and (seen.shape != (b, t) or seen.dtype != mx.bool_)):
        return False
    return native.suits(x, step, inputs, outputs) and (state is None or (state.shape == (b, h, d, n) and native.suits(state)))


def on_cpu(
    x: mx.array,
    step: mx.array,
    decay_rates: mx.array,
    inputs: mx.array,
    outputs: mx.array,
    skip: mx.array,
    state: mx.array | None = None,
    seen: mx.array | None = None,
    lengths: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Computes ``reference`` now, by the library. A row's bits do not depend on the other rows. Raises Traced."""
    given = [native.dense(each) for each in (x, step, decay_rates, inputs, outputs, skip)]
    maybe = [None if each is None else native.dense(each) for each in (state, seen)]
    ends = None if lengths is None else np.array(lengths).astype(np.int64)
    b, _, h, d = x.shape
    y, after = native.empty(x.shape), native.empty((b, h, d, inputs.shape[-1]))
    native.library().state_space(*given, y, after, *(None if each is None else id(each) for each in (*maybe, ends)))
    return y, after
