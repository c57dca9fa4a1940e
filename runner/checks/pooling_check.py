"""Tests on a pooling model's own weights how texts may share a batch, from the fastest way to the most cautious.

    padded    texts of unlike length, with pads on the right
    exact     texts of one length
    alone     one text at a time

Short texts go through the network in a batch, and each alone. Where their vectors differ, or the batch crashes, the next way is tried.
For deterministic mode it tests what a text's bits in a batch depend on. Knows models, not their names.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from mlx.utils import tree_flatten

from ..core.arrays import Floats, Ids
from ..core.errors import ModelError, first_line
from ..core.images import ImageTable
from ..pooling.spec import EmbeddingHead, PoolingSpec
from ..scheduler.limits import Limits
from ..scheduler.pool_batches import fixed_shape
from .padding_probe import COPIES, NOISE, ROUNDING, SPREAD, crash_reason
from .picture_check import made_up_pictures, noise_in_place_of_features
from .trial import largest_gap, random_ids

Sharing = Literal["padded", "exact", "alone"]
WAYS: tuple[Sharing, ...] = get_args(Sharing)  # the fastest first
LENGTHS = (12, 5, 8, 12)  # of the trial's texts; the first and the last have one length
EXACT = (0, 3)
# In float32 a logit keeps to this, and a unit vector's numbers to a tenth of it; a vector of another length in proportion.
PROMISE = 1e-4
LEAST_SIZE = 0.1  # logits that are all smaller are judged as if they were so large
TRIAL_LENGTH = 13  # tokens of the texts with which slots are tried, as in ``slot_independence``


@dataclass(slots=True, frozen=True)
class TextBatching:
    """How texts share a batch. difference: the largest of a vector's numbers seen, of those ``allowed``.

    reason: why the faster ways are not taken.
    """

    way: Sharing
    difference: float = 0.0
    allowed: float = PROMISE
    reason: str = ""


def find_text_batching(network: Any, vocabulary: int, spec: PoolingSpec, positions: int = sys.maxsize) -> TextBatching:
    """Finds the fastest way in which texts get the same vectors as each text alone. positions: the most tokens that the model takes."""
    texts = random_ids(np.random.default_rng(0), vocabulary, [min(length, positions) for length in LENGTHS])
    return _fastest_way(network, spec, texts)


def find_picture_batching(network: Any, vocabulary: int, spec: PoolingSpec, placeholder: int, name: str) -> TextBatching:
    """Finds the same for rows of which some hold pictures: made-up ones, with noise in the place of a tower's features.

    network: with a body that was loaded to read pictures. placeholder: the id that carries a feature. name: of the model, for messages.
    Raises ModelError where a row alone fails.
    """
    table = ImageTable(placeholder)
    small, large = made_up_pictures(table)
    texts = random_ids(np.random.default_rng(0), vocabulary, LENGTHS)
    for row, (image, at) in {0: (small, 2), 2: (small, 1), 3: (large, 3)}.items():
        texts[row][at : at + image.tokens] = image.ids
    with noise_in_place_of_features(network.body.network):
        try:
            return _fastest_way(network.reading(table), spec, texts)
        except Exception as error:  # a model file may fail in any way
            raise ModelError(f"model.path: {name} cannot read pictures: a row alone fails: {first_line(error)}") from error


def _fastest_way(network: Any, spec: PoolingSpec, texts: Sequence[Ids]) -> TextBatching:
    alone = np.concatenate([pooled(network, [ids]) for ids in texts])
    allowed = _allowed(network, spec, alone, 0.0)
    reason = "" if np.isfinite(alone).all() else "vectors of random tokens hold NaN or infinity"
    ways: dict[Sharing, Sequence[int]] = {"padded": range(3), "exact": EXACT}
    for way, rows in ways.items():
        try:
            found = pooled(network, [texts[row] for row in rows])
        except Exception as error:  # a probe that crashes is a probe that failed
            reason = reason or crash_reason(f"{way} batches", error)
            continue
        difference = largest_gap(found, alone[list(rows)])
        if not difference <= allowed:
            allowed = _allowed(network, spec, alone, _noise(network, texts[0], alone[0]))
        if difference <= allowed:
            return TextBatching(way, difference, allowed, reason)
        reason = reason or f"{way} batches change vectors by {difference:.2g} (allowed {allowed:.2g})"
    return TextBatching("alone", 0.0, allowed, reason)


def fixed_slots_alike(network: Any, vocabulary: int, limits: Limits, positions: int) -> bool:
    """Returns whether a text gets the same bits in each slot of deterministic mode's batches, beside whatever other texts.

    Some kernels of a BLAS sum the last rows of a product in another way than the first, and a batch without pads may take another way.
    """
    rng = np.random.default_rng(3)
    rows, width = fixed_shape(limits, min(TRIAL_LENGTH, positions), positions)
    shapes = {(rows, width), (rows // 2 + 1, width), (min(rows, 3), width)}
    pads = 0 if limits.equal_lengths else 3
    for rows, width in sorted(shape for shape in shapes if shape[0] > 1):
        texts = random_ids(rng, vocabulary, [width - row % (pads + 1) for row in range(rows)])
        unpadded = [texts[0], *random_ids(rng, vocabulary, [width] * (rows - 1))]
        first, moved = pooled(network, texts, width), pooled(network, texts[1:] + texts[:1], width)
        if not np.array_equal(np.roll(first, -1, axis=0), moved):
            return False
        if not np.array_equal(first[0], pooled(network, unpadded, width)[0]):
            return False
    return True


def pooled(network: Any, texts: Sequence[Ids], width: int = 0) -> Floats:
    """Returns the vectors [B, D] of texts in one call, padded on the right to the longest, or to ``width``."""
    lengths = [len(ids) for ids in texts]
    tokens = np.zeros((len(texts), max([*lengths, width])), np.int32)
    for row, ids in zip(tokens, texts, strict=True):
        row[: len(ids)] = ids
    return np.array(network(tokens, lengths))


def _noise(network: Any, ids: Ids, alone: Floats) -> float:
    """Returns how far a text's vector is from those in a batch of copies of it: rounding alone, as nothing else can enter."""
    try:
        return max(largest_gap(copy, alone) for copy in pooled(network, [ids] * COPIES))
    except Exception:
        return 0.0


def _allowed(network: Any, spec: PoolingSpec, alone: Floats, noise: float) -> float:
    """Returns how far a number of a vector may be off, on a device with so much ``noise``."""
    precision = _precision(network)
    size = float(np.sqrt(np.mean(alone.astype(np.float64) ** 2)))
    if isinstance(spec.head, EmbeddingHead):
        promise = PROMISE / 10 * float(np.sqrt(np.mean(np.sum(alone.astype(np.float64) ** 2, axis=1))))
    else:
        promise, size = PROMISE, max(size, LEAST_SIZE)
    least = NOISE * ROUNDING[precision] * float(np.abs(alone).max()) if precision in ROUNDING else promise
    return min(SPREAD[precision] * size, max(least, NOISE * noise))  # NaN, which allows nothing, where a number is


def _precision(network: Any) -> str:
    """Returns the lowest precision among the network's weights."""
    arrays: list[Any] = [leaf for _, leaf in tree_flatten(network.parameters())]
    kinds = {str(leaf.dtype).removeprefix("mlx.core.") for leaf in arrays}
    return next((kind for kind in ROUNDING if kind in kinds), "float32")
