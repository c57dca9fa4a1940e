"""Samples slowly, in plain Python and float64, by sorting: the specification that the kernels are tested against."""

import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from mlx_bulk.runner.core.requests import Sampling
from numpy.typing import NDArray

Distribution = NDArray[np.float64]


def edited(
    logits: Sequence[float],
    s: Sampling,
    prompt: Sequence[int] = (),
    completion: Sequence[int] = (),
    eos: Sequence[int] = (),
    breakers: Collection[int] = (),
) -> list[float]:
    """Logits after the min_tokens mask, the bias, the penalties and DRY."""
    x = [float(value) for value in logits]
    if len(completion) < s.min_tokens:
        for i in (set() if s.ignore_eos else set(eos)) | set(s.stop_token_ids):
            x[i] = -math.inf
    for i, bias in s.logit_bias.items():
        x[i] += bias
    for i in set(prompt) | set(completion):
        x[i] = x[i] / s.repetition_penalty if x[i] > 0 else x[i] * s.repetition_penalty
    for i, count in Counter(completion).items():
        x[i] -= s.presence_penalty + s.frequency_penalty * count
    for i, length in repetitions([*prompt, *completion], s.dry_range, breakers).items():
        if s.dry_multiplier > 0 and length >= s.dry_allowed_length:
            x[i] -= min(s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length), 1e30)
    return x


def repetitions(ids: Sequence[int], span: int, breakers: Collection[int]) -> dict[int, int]:
    """For each token that once followed what the text ends with, the longest such end: DRY's match length (p-e-w 2024)."""
    ids = ids[-span:] if span else ids
    found: dict[int, int] = {}
    for at in range(1, len(ids)):  # ids[at] followed the match that ends at at - 1
        length = 0
        while length < at and ids[at - 1 - length] == ids[-1 - length] and ids[-1 - length] not in breakers:
            length += 1
        if length and ids[at] not in breakers:
            found[ids[at]] = max(found.get(ids[at], 0), length)
    return found


def distribution(x: Sequence[float], s: Sampling, coin: float = 0.0) -> Distribution:
    """Probabilities [V] that a token is drawn with from edited logits ``x`` [V]. ``coin``: XTC's number in [0, 1)."""
    by_rank = sorted((i for i in range(len(x)) if x[i] > -math.inf), key=lambda i: (-x[i], i))
    if s.temperature == 0:
        return _spread({by_rank[0]: 1.0}, len(x))
    weights = {i: math.exp((x[i] - x[by_rank[0]]) / s.temperature) for i in by_rank}
    kept = by_rank[: s.top_k] if s.top_k else by_rank
    if s.top_p < 1:
        # the kernels hold parameters in float32: 0.9 is theirs, not Python's
        needed, mass, nucleus = float(np.float32(s.top_p)) * math.fsum(weights[i] for i in kept), 0.0, 0
        while mass < needed and nucleus < len(kept):
            mass += weights[kept[nucleus]]
            nucleus += 1
        kept = kept[: max(nucleus, 1)]
    kept = [i for i in kept if weights[i] >= float(np.float32(s.min_p)) * weights[kept[0]]]
    p = _spread({i: weights[i] for i in kept}, len(x))
    if s.typical_p < 1:
        p = _typical(p, float(np.float32(s.typical_p)))
    if coin < float(np.float32(s.xtc_probability)):
        top = [i for i in np.flatnonzero(p).tolist() if p[i] >= float(np.float32(s.xtc_threshold))]
        if len(top) > 1:
            least = min(x[i] for i in top)
            p = _spread({int(i): float(p[i]) for i in np.flatnonzero(p) if x[i] <= least}, len(x))
    return p


def _typical(p: Distribution, share: float) -> Distribution:
    """The smallest set of tokens whose surprise is nearest to the entropy (Meister et al. 2022, equation 9)."""
    ids = np.flatnonzero(p).tolist()
    entropy = -math.fsum(p[i] * math.log(p[i]) for i in ids)
    nearest, mass = sorted(ids, key=lambda i: (abs(-math.log(p[i]) - entropy), i)), 0.0
    kept: dict[int, float] = {}
    while mass < share and len(kept) < len(nearest):
        i = nearest[len(kept)]
        kept[i], mass = float(p[i]), mass + float(p[i])
    return _spread(kept, len(p))


def _spread(weights: dict[int, float], vocabulary: int) -> Distribution:
    p = np.zeros(vocabulary)
    p[list(weights)] = list(weights.values())
    return p / p.sum()


def chi_square_bound(degrees: int) -> float:
    """The value that chi-square with ``degrees`` of freedom exceeds once in 10,000 (Wilson and Hilferty 1931; z = 3.72)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.72 * math.sqrt(spread)) ** 3


def assert_frequencies(drawn: NDArray[np.integer], p: Distribution) -> None:
    """Counts of ``drawn`` ids fit ``p`` by Pearson's chi-square; ids of probability zero are never drawn.

    Cells that expect fewer than five draws are taken together. The tests' seeds are fixed, so this passes or fails for good.
    """
    counts, expected = np.bincount(drawn, minlength=len(p)), p * len(drawn)
    assert not counts[p == 0].any(), f"drawn with probability zero: {np.flatnonzero((counts > 0) & (p == 0))}"
    rare = expected < 5
    observed, wanted = np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    cells = wanted > 0
    statistic = ((observed[cells] - wanted[cells]) ** 2 / wanted[cells]).sum()
    degrees = int(cells.sum()) - 1
    assert degrees > 0 or (counts[p > 0] == len(drawn)).all()
    assert degrees == 0 or statistic < chi_square_bound(degrees)
