"""Computes the statistics of a scoring job for stats.arrow, summary.json and sweeps: one row over all, then one a group.

They follow from the records and the config alone, so a run directory always gives the same bytes. Errors are clustered by document
unless they are called token-wise. standard_errors.py has the formulas; score_sums.py reads the records.
"""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.score import ScoreConfig
from .score_sums import ScoreSums, collect_scores, compared
from .standard_errors import bits_per_byte, percentiles, perplexity, share_error, through_exp

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
TOKEN_COUNTS = ("documents", "nothing_to_score", "truncated", "minus_infinity", "scored_tokens", "words", "bytes")
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
    named: list[tuple[str, str | None, int | None]] = [("all", "all", None)]
    named += [("group", group, number) for number, group in enumerate(sums.groups)]
    rows = [{"of": of, "group": group, **_figures(sums, number, score.kind, compared(config)), **settings} for of, group, number in named]
    return pa.table({name: pa.array([row[name] for row in rows], TYPES.get(name, pa.float64())) for name in rows[0]})


def _figures(sums: ScoreSums, group: int | None, kind: str, against: bool) -> dict[str, Any]:
    if kind == "choices":
        return _of_choices(sums, group)
    row = _of_tokens(sums, group)
    if kind == "completion":
        hits, of = sums.counted("greedy", group), row["documents"] - row["nothing_to_score"]
        row |= {"greedy": hits, "greedy_share": hits / of if of else None, "greedy_share_stderr": share_error(hits, of)}
    return row | _of_divergences(sums, group, row) if against else row


def _of_tokens(sums: ScoreSums, group: int | None) -> dict[str, Any]:
    counts = {name: sums.counted(name, group) for name in TOKEN_COUNTS}
    tokens, words, size = counts["scored_tokens"], counts["words"], counts["bytes"]
    logprob = sums.mean("logprob")
    total, error = logprob.total(group), logprob.clustered_error(group)
    perplexed = perplexity(total, tokens)
    return {
        **counts,
        "sum_logprob": total if tokens else None,
        "mean_nll": _mean(-total, tokens),
        "mean_nll_stderr": error,
        "mean_nll_stderr_tokenwise": logprob.tokenwise_error(group),
        "token_perplexity": perplexed,
        "token_perplexity_stderr": through_exp(perplexed, error),
        "word_perplexity": perplexity(total, words),
        "byte_perplexity": perplexity(total, size),
        "bits_per_byte": bits_per_byte(total, size),
        "first_token_scored": sums.counted("cut_bytes", group) == 0,
    }


def _of_divergences(sums: ScoreSums, group: int | None, row: dict[str, Any]) -> dict[str, Any]:
    tokens = row["scored_tokens"]
    kl, delta_p, agreement, gap = (sums.mean(name) for name in ("kl", "delta_p", "agreement", "gap"))
    reference = sums.mean("reference").total(group)
    log_ratio = None if reference == row["sum_logprob"] == -math.inf else _mean(reference - (row["sum_logprob"] or 0.0), tokens)
    ratio = None if log_ratio is None else perplexity(-log_ratio, 1)
    error, tokenwise = gap.clustered_error(group), gap.tokenwise_error(group)
    return {
        "kl_mean": _mean(kl.total(group), tokens),
        "kl_mean_stderr": kl.clustered_error(group),
        "kl_mean_stderr_tokenwise": kl.tokenwise_error(group),
        **dict(zip(KL_PERCENTILES, percentiles(sums.kls(group), tuple(KL_PERCENTILES.values())), strict=True)),
        "delta_p_mean": _mean(delta_p.total(group), tokens),
        "delta_p_mean_stderr": delta_p.clustered_error(group),
        "delta_p_rms": math.sqrt(sums.mean("delta_p_power").total(group) / tokens) if tokens else None,
        "agreement": _mean(agreement.total(group), tokens),
        "agreement_stderr": agreement.clustered_error(group),
        "reference_perplexity": perplexity(reference, tokens),
        "log_ratio": log_ratio,
        "log_ratio_stderr": error,
        "log_ratio_stderr_tokenwise": tokenwise,
        "perplexity_ratio": ratio,
        "perplexity_ratio_stderr": through_exp(ratio, error),
        "perplexity_ratio_stderr_tokenwise": through_exp(ratio, tokenwise),
    }


def _of_choices(sums: ScoreSums, group: int | None) -> dict[str, Any]:
    labelled = sums.counted("labelled", group)
    row: dict[str, Any] = {name: sums.counted(name, group) for name in ("rows", "labelled", "truncated", "minus_infinity", "scored_tokens")}
    for name in ACCURACIES:
        hits = sums.counted(name, group)
        row |= {name: hits / labelled if labelled else None, f"{name}_stderr": share_error(hits, labelled)}
    return row


def _mean(total: float, count: int) -> float | None:
    return total / count + 0.0 if count else None  # + 0.0: a sum of -0.0 has no sign
