"""The gated delta rule (Yang et al. 2024: Qwen3-Next, Kimi Linear): a linear attention whose state each token corrects."""

import mlx.core as mx

from .. import native


def reference(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    kept: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    seen: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Returns y [B, T, H, E] and the state [B, H, E, D] after the last token, the specification, token by token.

    q, k: [B, T, K, D]; v: [B, T, H, E] with H a multiple of K; kept: the share of the state that stays, [B, T, H] or a number each
    [B, T, H, D]; beta: [B, T, H]; state: before the first token, None for zeros. For each token: state = kept · state, then
    state += beta (v - state k) kᵀ, and y = state q. Where ``seen`` [B, T] is False the state stays as it is, and y is 0.
    """
    (b, t, heads, d), (h, e) = q.shape, v.shape[2:]
    q, k = (mx.repeat(each, h // heads, axis=2) for each in (q, k))
    kept = kept[..., None] if kept.ndim == 3 else kept
    state = mx.zeros((b, h, e, d)) if state is None else state
    made: list[mx.array] = []
    for i in range(t):
        key = k[:, i, :, None]
        new = kept[:, i, :, None] * state
        delta = beta[:, i, :, None] * (v[:, i] - (new * key).sum(-1))
        new = new + delta[..., None] * key
        y = (new * q[:, i, :, None]).sum(-1)
        counts = mx.ones((b, 1, 1), mx.bool_) if seen is None else seen[:, i, None, None]
        state = mx.where(counts[..., None], new, state)
        made.append(mx.where(counts, y, 0))
    return mx.stack(made, axis=1), state


def suits(
    q: mx.array, k: mx.array, v: mx.array, kept: mx.array, beta: mx.array, state: mx.array | None, seen: mx.array | None = None
) -> bool:
    """Returns True when the library serves a call: float32 on the CPU, and shapes that fit."""
    if q.ndim != 4 or v.ndim != 4 or k.shape != q.shape or v.shape[:2] != q.shape[:2]:
        return False
    (b, t, heads, d), (h, e) = q.shape, v.shape[2:]
    if h % heads or beta.shape != (b, t, h) or kept.shape not in ((b, t, h), (b, t, h, d)):
        return False
    if seen is not None and (seen.shape != (b, t) or seen.dtype != mx.bool_):
        return False
    return native.suits(q, k, v, kept, beta) and (state is None or (state.shape == (b, h, e, d) and native.suits(state)))


def on_cpu(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    kept: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    seen: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Computes ``reference`` now, by the library. A row's bits do not depend on the other rows. Raises Traced."""
    given = [native.dense(each) for each in (q, k, v, kept, beta)]
    maybe = [None if each is None else native.dense(each) for each in (state, seen)]
    b, _, h, e = v.shape
    y, after = native.empty(v.shape), native.empty((b, h, e, q.shape[-1]))
    native.library().gated_delta(*given, y, after, *(None if each is None else id(each) for each in maybe))
    return y, after
