"""How far logprobs of the same tokens lie apart: mean, spread and largest difference, and k3, as sums.

d = other - stored, in nats; k3 = mean(exp(d) - 1 - d) estimates KL(stored || other) without a sign to cancel (Schulman 2020,
"Approximating KL divergence"). Knows no models and no files.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Floats

LARGEST, MEAN = 2e-4, 3e-5  # float32's promises for the same tokens in other shapes


@dataclass(slots=True)
class LogprobGap:
    """Sums over ``tokens`` of d, d², |d| and exp(d) - 1 - d, and the largest |d|. Two values of -inf do not differ."""

    tokens: int = 0
    sum: float = 0.0
    squares: float = 0.0
    absolute: float = 0.0
    largest: float = 0.0
    k3_sum: float = 0.0

    @property
    def mean(self) -> float | None:
        """The mean |d|; None without tokens."""
        return self.absolute / self.tokens if self.tokens else None

    @property
    def std(self) -> float | None:
        """The standard deviation of d around its mean; None without tokens."""
        if not self.tokens or not math.isfinite(self.squares):
            return None
        return math.sqrt(max(0.0, self.squares / self.tokens - (self.sum / self.tokens) ** 2))

    @property
    def k3(self) -> float | None:
        """The mean of exp(d) - 1 - d; None without tokens."""
        return self.k3_sum / self.tokens if self.tokens else None

    @property
    def within(self) -> bool:
        """True when the gap is within float32's promises."""
        return self.mean is None or (self.largest <= LARGEST and self.mean <= MEAN)

    def add(self, stored: Floats, other: Floats) -> None:
        """Adds the logprobs of N tokens, both [N]; a NaN counts as an infinite difference."""
        a, b = stored.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            d = np.where(np.isneginf(a) & np.isneginf(b), 0.0, b - a)
            d = np.where(np.isnan(d), np.inf, d)
            self.k3_sum += math.fsum(np.expm1(d) - d if np.isfinite(d).all() else [math.inf])
            self.sum += float(d.sum())
            self.squares += float((d * d).sum())
        self.tokens += len(d)
        self.absolute += math.fsum(np.abs(d))
        self.largest = max(self.largest, float(np.abs(d).max(initial=0.0)))
