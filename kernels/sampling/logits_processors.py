"""Changes single logits before a token is drawn: masks, biases, penalties, DRY. Knows no sampling."""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def _no_ints() -> Ints:
    return np.zeros(0, np.int32)


def _no_floats() -> Floats:
    return np.zeros(0, np.float32)


@dataclass(slots=True)
class Edits:
    """Changes to single logits, as flat arrays: entry i changes logit ``[rows[i], ids[i]]``.

    ``add`` is added first (a logit bias; -inf masks). Then ``seen_rows, seen_ids`` name the tokens of prompt and
    completion for the repetition penalty (Keskar et al. 2019: positive logits divided, negative ones multiplied). Then
    ``said_rows, said_ids`` name the completion's tokens, one entry per occurrence, for presence and frequency penalties. Last,
    ``dry`` is subtracted at ``dry_rows, dry_ids``: each pair once (dry.py).
    """

    rows: Ints = field(default_factory=_no_ints)
    ids: Ints = field(default_factory=_no_ints)
    add: Floats = field(default_factory=_no_floats)
    seen_rows: Ints = field(default_factory=_no_ints)
    seen_ids: Ints = field(default_factory=_no_ints)
    said_rows: Ints = field(default_factory=_no_ints)
    said_ids: Ints = field(default_factory=_no_ints)
    dry_rows: Ints = field(default_factory=_no_ints)
    dry_ids: Ints = field(default_factory=_no_ints)
    dry: Floats = field(default_factory=_no_floats)


def reference(x: mx.array, edits: Edits, repetition: Floats, presence: Floats, frequency: Floats) -> mx.array:
    """Changes x [B, V] in place, the specification. Penalties: [B]."""
    if len(edits.rows):
        x = x.at[mx.array(edits.rows), mx.array(edits.ids)].add(mx.array(edits.add))
    if len(edits.seen_rows):
        at = mx.array(edits.seen_rows), mx.array(edits.seen_ids)
        now, penalty = x[at], mx.array(repetition)[at[0]]
        x[at] = mx.where(now > 0, now / penalty, now * penalty)  # equal entries write equal values
    if len(edits.said_rows):
        at = mx.array(edits.said_rows), mx.array(edits.said_ids)
        x[at] = x[at] - mx.array(presence)[at[0]]
        x = x.at[at].subtract(mx.array(frequency)[at[0]])
    if len(edits.dry_rows):
        x = x.at[mx.array(edits.dry_rows), mx.array(edits.dry_ids)].subtract(mx.array(edits.dry))
    return x


def on_cpu(x: Floats, edits: Edits, repetition: Floats, presence: Floats, frequency: Floats) -> Floats:
    """Computes ``reference`` in NumPy, in place."""
    np.add.at(x, (edits.rows, edits.ids), edits.add)
    at = edits.seen_rows, edits.seen_ids
    now, penalty = x[at], repetition[at[0]]
    x[at] = np.where(now > 0, now / penalty, now * penalty)
    at = edits.said_rows, edits.said_ids
    x[at] = x[at] - presence[at[0]]
    np.subtract.at(x, at, frequency[at[0]])
    x[edits.dry_rows, edits.dry_ids] -= edits.dry
    return x
