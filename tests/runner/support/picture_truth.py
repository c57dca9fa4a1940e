"""How networks attend to pictures, plainly: positions token by token, masks pair by pair, and a row by itself through mlx-lm's layers."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID, ImageTable, PromptImage
from mlx_bulk.runner.vision.features import ImageFeatures
from numpy.typing import NDArray


def specified_positions(table: ImageTable, ids: Sequence[int]) -> NDArray[np.int64]:
    """Positions [3, T] token by token, as Qwen2-VL's paper says: after a picture comes what no token of it has reached."""
    found: list[tuple[int, int, int]] = []
    begin = 0
    for one in ids:
        after = max((max(each) for each in found), default=-1) + 1
        if one < FIRST_IMAGE_ID:
            found.append((after, after, after))
            continue
        picture = table.image_of(one)
        at, (_, height, width) = one - picture.first, picture.grid
        begin = after if at == 0 else begin
        found.append((begin, begin + at // width, begin + at % width))
        assert at // width < height
    return np.array(found, np.int64).reshape(-1, 3).T


def specified_mask(table: ImageTable, ids: Sequence[int], window: int | None) -> NDArray[np.bool_]:
    """Who sees whom [T, T], pair by pair, as Gemma 3 does: (before it, or in the same picture) and within the window."""
    pictures, at = list[int](), 0
    for i, one in enumerate(ids):
        if one >= FIRST_IMAGE_ID and (not i or ids[i - 1] != one - 1 or table.image_of(one) is not table.image_of(ids[i - 1])):
            at += 1
        pictures.append(at if one >= FIRST_IMAGE_ID else 0)
    seen = np.zeros((len(ids), len(ids)), bool)
    for q in range(len(ids)):
        for k in range(len(ids)):
            same = pictures[q] == pictures[k] > 0
            seen[q, k] = (k <= q or same) and (window is None or k > q - window)
    return seen


def turned_plainly(x: NDArray[Any], positions: NDArray[np.int64], axes: NDArray[np.intp], base: float) -> NDArray[np.float64]:
    """Numbers i and i + R / 2 turn by the position of i's axis, base ** (-2 i / R) a position. x [B, H, T, R], positions [3, B, T]."""
    half = x.shape[-1] // 2
    out = np.zeros(x.shape)
    for i in range(half):
        angle = positions[axes[i]][:, None] * base ** (-i / half)
        a, b = x[..., i], x[..., i + half]
        out[..., i], out[..., i + half] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return out


class SpecifiedRope:
    """Turns by given positions [3, T]."""

    def __init__(self, positions: NDArray[np.int64], axes: NDArray[np.intp], base: float):
        self._how = positions[:, None], axes, base

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        return mx.array(turned_plainly(np.array(x), *self._how).astype(np.float32))


class StackedNoise:
    """A tower that makes random features of a picture's digest, ``levels`` more of them for the first layers."""

    def __init__(self, width: int, levels: int, scale: float):
        self.width, self.levels, self.scale = width, levels, scale

    @property
    def nbytes(self) -> int:
        """Its weights are nobody's."""
        return 0

    def make_ready(self) -> None:
        """There is nothing to read."""

    def features(self, image: PromptImage) -> ImageFeatures:
        noise = np.random.default_rng(sum(image.digest.encode())).standard_normal((1 + self.levels, image.tokens, self.width))
        own, *stacked = (mx.array((self.scale * each).astype(np.float32)) for each in noise)
        return ImageFeatures(own, tuple(stacked))


def picture_truth(
    network: Any, table: ImageTable, tower: StackedNoise, ids: NDArray[np.int32], axes: NDArray[np.intp] | None
) -> NDArray[Any]:
    """Log-softmax [T, V] of one row: mlx-lm's own layers of ``network``, one after the other, without caches.

    axes: of M-RoPE; None for a network whose pictures see themselves both ways.
    """
    text = network.language_model
    body, args = text.model, text.args
    row = ids.tolist()
    embedded = np.array(body.embed_tokens(mx.array(table.plain(ids))))
    features = {part.image.digest: tower.features(part.image) for part in table.images_in(ids)}
    for part in table.images_in(ids):
        embedded[part.indices] = np.array(features[part.image.digest].embeddings)[part.offsets]
    h = mx.array(embedded)[None] * (1.0 if axes is not None else sqrt(args.hidden_size))
    for level, layer in enumerate(body.layers):
        if axes is not None:
            layer.self_attn.rope = SpecifiedRope(specified_positions(table, row), axes, args.rope_theta)
            h = layer(h, "causal", None)
        else:
            window = args.sliding_window if layer.self_attn.is_sliding else None
            seen: Any = specified_mask(table, row, window)
            h = layer(h, mx.array(seen)[None, None], None)
        if level < tower.levels:
            added = np.zeros(h.shape, np.float32)
            for part in table.images_in(ids):
                added[0, part.indices] = np.array(features[part.image.digest].deepstack[level])[part.offsets]
            h = h + mx.array(added)
    logits = np.array(text.lm_head(body.norm(h))[0]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
