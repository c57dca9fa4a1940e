"""XTC, "exclude top choices": by chance leaves out the likely tokens of a row, all but the least likely of them.

By p-e-w, 2024 (oobabooga/textgen pull request 6335): in a share ``probability`` of steps, all tokens of at least ``threshold``
probability go but the least likely one, if there are two or more. Equals of that one stay too, as in mlx-lm. What is left keeps its
proportions; unlikely tokens stay, so it goes with min-p.

    p            0.50   0.30   0.15   0.05        threshold 0.1
    left         –      –      0.15   0.05

``reference`` in plain mx ops is the specification; ``on_cpu`` does the same in NumPy, and the library in csrc/sampling.h.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import logprobs

Floats = NDArray[np.float32]


@dataclass(slots=True, frozen=True)
class XTC:
    """The parameters of B rows; probability 0 is off. uniforms: [B] in [0, 1), independent of those that the tokens are drawn by."""

    probability: Floats
    threshold: Floats
    uniforms: Floats

    @property
    def on(self) -> NDArray[np.bool_]:
        """Marks the rows that may lose tokens, in this step or another."""
        return self.probability > 0

    @property
    def levels(self) -> Floats:
        """This step's thresholds [B]: infinite for the rows that keep all."""
        return np.where(self.uniforms < self.probability, self.threshold, np.float32(np.inf))


def reference(z: mx.array, rows: XTC) -> mx.array:
    """Computes the specification: marks the tokens of z [B, V] that stay, bool [B, V]. z: log-weights."""
    e = mx.exp(z)
    likely = e >= mx.array(rows.levels)[:, None] * logprobs.sum_by_blocks(e)
    return z <= mx.where(likely, z, mx.inf).min(axis=-1, keepdims=True)


def on_cpu(z: Floats, levels: Floats) -> None:
    """Computes ``reference`` in NumPy: sets the tokens of z [R, V] that go to -inf, in place. levels: [R]."""
    for row, level in zip(z, levels.astype(np.float64), strict=True):
        if level <= 1:
            e = np.exp(row)
            likely = row[e >= level * e.sum(dtype=np.float64)]
            if len(likely) > 1:
                row[row > likely.min()] = -np.inf
