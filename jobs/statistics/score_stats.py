"""Computes the statistics of a scoring job for stats.arrow, summary.json and sweeps: one row over all, then one a group.

They follow from the records and the config alone, so a run directory always gives the same bytes. Errors are clustered by document
unless they are called token-wise. standard_errors.py has the formulas; score_sums.py reads the records.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.score import ScoreConfig
from ...runner.core.arrays import Floats
from .score_sums import Lines, ScoreSums, collect_scores
from .standard_errors import bits_per_byte, clustered_error, percentiles, perplexity, share_error, through_exp, tokenwise_error

KL_PERCENTILES = {
    "kl_min": 0.0,
    "kl_p1": 1.0,
    "kl_p5": 5.0,
    "kl_p10": 10.0,
    "kl_p50": 50.0,
    "kl_p90": 90.0,
    "kl_p95": 95.0,
    "kl_p99": 99.0,
    "kl_p99_9": 99.9,
    "kl_max": 100.0,
}
ACCURACIES = ("acc", "acc_norm", "acc_bytes", "acc_tokens")
COUNTS = (
    "documents",
    "rows",
    "labelled",
    "nothing_to_score",  # documents without a scored token
    "truncated",  # documents that were cut
    "minus_infinity",  # scored tokens that the model gives no chance
    "scored_tokens",
    "words",  # of documents with a scored token
    "bytes",  # of the scored tokens
    "greedy",  # completions of which each token is the model's first choice
)
TYPES = {
    "of": pa.string(),
    "group": pa.large_string(),
    **dict.fromkeys(("prefix", "windows"), pa.string()),
    **dict.fromkeys(("context", "stride"), pa.int32()),
    **dict.fromkeys(("first_token_scored", "bos_every_window"), pa.bool_()),
    **dict.fromkeys(COUNTS, pa.int64()),
}


def score_statistics(run: Path, config: ScoreConfig, prefix: str, bos_every_window: bool, context: int | None) -> pa.Table:
    """Returns the statistics of all records in the run directory ``run``: a row over all, then one a group by first appearance.

    ``of`` is "all" or "group"; it tells the row over all from a group that is named "all". Rows without a value are a group of
    their own, null. ``prefix`` and ``bos_every_window`` say what came before the tokens, ``context`` how many ids a call had at
    most. They are written as they are, with a document's ``windows`` and ``stride``. Nothing to score gives null; a token without a
    chance gives an infinite perplexity. Raises RunDirError where a part is missing or lacks a column.
    """
    sums = collect_scores(run, config)
    score = config.score
    settings = {
        "prefix": prefix,
        "bos_every_window": bos_every_window,
        "context": context,
        "windows": score.windows if score.kind == "text" else None,
        "stride": score.stride,
    }
    rows = [{"of": of, "group": group, **_figures(part, score.kind), **settings} for of, group, part in _parts(sums)]
    return pa.table({name: pa.array([row[name] for row in rows], TYPES.get(name, pa.float64())) for name in rows[0]})


def _parts(sums: ScoreSums) -> Iterator[tuple[str, str | None, ScoreSums]]:
    """Yields for each row of the table: ``of``, the group, and its lines and KLs. The KLs are a copy, since they get sorted."""
    yield "all", "all", ScoreSums(sums.lines, [], None if sums.kls is None else sums.kls.copy())
    order = np.argsort(sums.lines["group"], kind="stable")
    ends = np.cumsum(np.bincount(sums.lines["group"], minlength=len(sums.groups)))
    token_ends = np.cumsum(sums.lines["tokens"], dtype=np.int64) if sums.kls is not None else None
    for code, group in enumerate(sums.groups):
        mine = order[ends[code - 1] if code else 0 : ends[code]]
        kls = None
        if sums.kls is not None and token_ends is not None:
            starts = token_ends[mine] - sums.lines["tokens"][mine]
            kls = np.concatenate([sums.kls[start:end] for start, end in zip(starts, token_ends[mine], strict=True)])
        yield "group", group, ScoreSums(sums.lines[mine], [], kls)


def _figures(part: ScoreSums, kind: str) -> dict[str, Any]:
    if kind == "choices":
        return _of_choices(part.lines)
    row = _of_tokens(part.lines)
    if kind == "completion":
        hits, of = int(part.lines["greedy"].sum()), row["documents"] - row["nothing_to_score"]
        row |= {"greedy": hits, "greedy_share": hits / of if of else None, "greedy_share_stderr": share_error(hits, of)}
    return row if part.kls is None else row | _of_divergences(part.lines, part.kls, row)


def _of_tokens(lines: Lines) -> dict[str, Any]:
    scored = lines[lines["tokens"] > 0]
    sums, counts = scored["sum_logprob"], scored["tokens"].astype(np.int64)
    tokens, words, size = int(counts.sum()), int(scored["words"].sum(dtype=np.int64)), int(scored["bytes"].sum())
    total = math.fsum(sums)
    error, perplexed = clustered_error(sums, counts), perplexity(total, tokens)
    return {
        "documents": len(lines),
        "nothing_to_score": len(lines) - len(scored),
        "truncated": int(lines["truncated"].sum()),
        "minus_infinity": int(lines["minus_infinity"].sum()),
        "scored_tokens": tokens,
        "words": words,
        "bytes": size,
        "sum_logprob": total if tokens else None,
        "mean_nll": _mean(-total, tokens),
        "mean_nll_stderr": error,
        "mean_nll_stderr_tokenwise": tokenwise_error(sums, counts, scored["squares"]),
        "token_perplexity": perplexed,
        "token_perplexity_stderr": through_exp(perplexed, error),
        "word_perplexity": perplexity(total, words),
        "byte_perplexity": perplexity(total, size),
        "bits_per_byte": bits_per_byte(total, size),
        "first_token_scored": bool(lines["whole"].all()),
    }


def _of_divergences(lines: Lines, kls: Floats, row: dict[str, Any]) -> dict[str, Any]:
    lines = lines[lines["tokens"] > 0]
    counts, tokens = lines["tokens"].astype(np.int64), int(lines["tokens"].sum())
    with np.errstate(invalid="ignore"):  # documents that neither model gives a chance
        gaps = lines["reference_sum"] - lines["sum_logprob"]
    reference = math.fsum(lines["reference_sum"])
    log_ratio = None if reference == row["sum_logprob"] == -math.inf else _mean(reference - (row["sum_logprob"] or 0.0), tokens)
    ratio = None if log_ratio is None else perplexity(-log_ratio, 1)
    error, tokenwise = clustered_error(gaps, counts), tokenwise_error(gaps, counts, lines["gap_squares"])
    return {
        "kl_mean": _mean(math.fsum(lines["kl"]), tokens),
        "kl_mean_stderr": clustered_error(lines["kl"], counts),
        "kl_mean_stderr_tokenwise": tokenwise_error(lines["kl"], counts, lines["kl_squares"]),
        **dict(zip(KL_PERCENTILES, percentiles(kls, tuple(KL_PERCENTILES.values())), strict=True)),
        "delta_p_mean": _mean(math.fsum(lines["delta_p"]), tokens),
        "delta_p_mean_stderr": clustered_error(lines["delta_p"], counts),
        "delta_p_rms": math.sqrt(math.fsum(lines["delta_p_power"]) / tokens) if tokens else None,
        "agreement": _mean(float(lines["agreements"].sum()), tokens),
        "agreement_stderr": clustered_error(lines["agreements"].astype(np.float64), counts),
        "reference_perplexity": perplexity(reference, tokens),
        "log_ratio": log_ratio,
        "log_ratio_stderr": error,
        "log_ratio_stderr_tokenwise": tokenwise,
        "perplexity_ratio": ratio,
        "perplexity_ratio_stderr": through_exp(ratio, error),
        "perplexity_ratio_stderr_tokenwise": through_exp(ratio, tokenwise),
    }


def _of_choices(lines: Lines) -> dict[str, Any]:
    labelled = int(lines["labelled"].sum())
    row: dict[str, Any] = {
        "rows": len(lines),
        "labelled": labelled,
        "truncated": int(lines["truncated"].sum()),
        "minus_infinity": int(lines["minus_infinity"].sum()),
        "scored_tokens": int(lines["tokens"].sum(dtype=np.int64)),
    }
    for name in ACCURACIES:
        hits = int(lines[name].sum())
        row |= {name: hits / labelled if labelled else None, f"{name}_stderr": share_error(hits, labelled)}
    return row


def _mean(total: float, count: int) -> float | None:
    return total / count + 0.0 if count else None  # + 0.0: a sum of -0.0 has no sign
