"""Compares the rewards of the same samples in two rollouts: both means, and their difference with its error.

Knows arrays of rewards and each one's document; no runs and no files. Differences are B − A.
"""

import math

import numpy as np

from ...runner.core.arrays import Doubles, Ints
from ..statistics.standard_errors import clustered_error


def error_by_document(gaps: Doubles, rows: Ints) -> float | None:
    """Returns the standard error of the mean of ``gaps`` [M], clustered by the document ``rows`` [M] of each.

    None for fewer than two documents.
    """
    names, document = np.unique(rows, return_inverse=True)
    sums, sizes = np.zeros(len(names)), np.zeros(len(names), np.int64)
    np.add.at(sums, document, gaps)
    np.add.at(sizes, document, 1)
    return clustered_error(sums, sizes)


def reward_figures(a: Doubles, b: Doubles, rows: Ints) -> dict[str, float | int | str | None]:
    """Returns the mean rewards over the samples [M] that have one in both runs (NaN: none), and the paired difference.

    rows: [M], the document of each sample. The error is clustered by it, since samples of one prompt are alike.
    """
    rated = ~np.isnan(a) & ~np.isnan(b)
    n = int(rated.sum())
    gaps = (b - a)[rated]
    return {
        "rewarded": n,
        "unrewarded": len(rated) - n,
        "reward_a": math.fsum(a[rated]) / n if n else None,
        "reward_b": math.fsum(b[rated]) / n if n else None,
        "reward_difference": math.fsum(gaps) / n if n else None,
        "reward_difference_stderr": error_by_document(gaps, rows[rated]),
    }
