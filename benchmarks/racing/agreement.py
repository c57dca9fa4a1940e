"""Do two peers say the same? Of completions: their tokens and logprobs; of scored texts: their summed logprobs; of embeddings: all numbers.

A random model has many near-ties, and a rounding then picks another token: completions are compared through the first token in which
they differ. Drawn tokens are compared as a crowd: each library has random numbers of its own.
"""

import statistics
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOGPROB = 1e-3  # natural-log units, of a token
SUM = 1e-4  # relative, of a text
COSINE, NUMBER = 0.99999, 1e-5  # at least, and at most, of two vectors of length 1
DEVIATIONS = 6.0  # standard errors between the means of two peers' drawn tokens


class DisagreementError(AssertionError):
    """Two peers have not done the same work."""


def greedy(peer: str, ours: dict[str, Any], theirs: dict[str, Any], bound: float = LOGPROB) -> dict[str, float]:
    """Share of completions that are equal, and the largest difference of a logprob through the first token that differs.

    ours, theirs: ``ids`` and ``logprobs``, a list a completion; theirs may hold the first ones alone. Raises DisagreementError.
    """
    return _alike(peer, ours, theirs, bound, 1)


def seeded(peer: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """As ``greedy``, of tokens drawn with the same random numbers: two that differ need not be near in logprob, but those before are."""
    return _alike(peer, ours, theirs, LOGPROB, 0)


def _alike(peer: str, ours: dict[str, Any], theirs: dict[str, Any], bound: float, beyond: int) -> dict[str, float]:
    """``beyond``: how many tokens are compared from the first on that differs."""
    equal, apart = 0, [0.0]
    own = zip(ours["ids"], ours["logprobs"], strict=True)
    for (ids, logprobs), other, others in zip(own, theirs["ids"], theirs["logprobs"], strict=False):
        if len(ids) != len(other):
            raise DisagreementError(f"{peer}: a completion of {len(other)} tokens, ours has {len(ids)}")
        same = next((i for i, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b), len(ids))
        equal += same == len(ids)
        apart += [abs(a - b) for a, b in zip(logprobs[: same + beyond], others[: same + beyond], strict=True)]
    largest = _largest(apart, bound, f"{peer}: a logprob differs by {{:.2g}} from ours")
    return {"equal": round(equal / len(theirs["ids"]), 3), "largest_difference": round(largest, 7)}


def drawn(peer: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """The means of both peers' logprobs. Raises DisagreementError where they are further apart than chance explains."""
    own, other = (list(chain.from_iterable(side["logprobs"])) for side in (ours, theirs))
    if {len(ids) for ids in ours["ids"]} != {len(ids) for ids in theirs["ids"]}:
        raise DisagreementError(f"{peer}: completions of other lengths than ours")
    apart = statistics.fmean(own) - statistics.fmean(other)
    error = (statistics.variance(own) / len(own) + statistics.variance(other) / len(other)) ** 0.5
    if not abs(apart) <= DEVIATIONS * error:
        raise DisagreementError(f"{peer}: mean logprob of what it drew differs by {apart:.3g} from ours, the standard error is {error:.2g}")
    return {"mean_logprob": round(statistics.fmean(other), 4), "ours": round(statistics.fmean(own), 4)}


def sums(peer: str, ours: list[float], theirs: list[float], bound: float = SUM) -> float:
    """The largest relative difference of a text's summed logprob. Raises DisagreementError."""
    apart = [abs(a - b) / abs(a) for a, b in zip(ours, theirs, strict=True)]
    return float(f"{_largest(apart, bound, f'{peer}: a summed logprob differs by {{:.2g}} of ours'):.2g}")


def vectors(peer: str, ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> dict[str, float]:
    """The least cosine of two vectors of one text, and the largest difference of a number. Raises DisagreementError."""
    own, other = ours.astype(np.float64), theirs.astype(np.float64)
    cosines = (own * other).sum(axis=1) / np.linalg.norm(own, axis=1) / np.linalg.norm(other, axis=1)
    least, apart = float(cosines.min()), float(np.abs(own - other).max())
    if not (least >= COSINE and apart <= NUMBER):
        raise DisagreementError(f"{peer}: cosine {least:.7f} with our vector, a number differs by {apart:.2g}")
    return {"cosine": round(least, 8), "largest_difference": float(f"{apart:.2g}")}


def _largest(apart: list[float], bound: float, text: str) -> float:
    """Raises DisagreementError where one is above ``bound``, or NaN (which is never the largest)."""
    if wrong := [one for one in apart if not one <= bound]:
        raise DisagreementError(f"{text.format(wrong[0])}, {bound:g} is allowed")
    return max(apart)
