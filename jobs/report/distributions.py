"""Builds charts with words of a run's distributions: lengths, logprobs, perplexities, finish reasons, and rewards.

Knows the figures of record_pass.py, and no files.
"""

import math
from collections.abc import Mapping

from ..report_data.bins import Bins
from ..report_data.record_pass import RecordPass
from ..report_data.rollout_figures import RolloutFigures
from ..statistics.advantages import DEGENERATE
from ..statistics.rollout_sums import RewardError
from ..terminal.tables import count_text, figure
from .charts import Chart, ChartPoint, bars, histogram_chart, lines
from .page import PageSection, Table, table

_TICKS, _MESSAGE = 20, 400


def distributions(found: RecordPass) -> PageSection | None:
    """Shows lengths, logprobs, perplexities, finish reasons and predictions, as far as the records have them."""
    charts: list[Chart] = []
    titles = {"prompt": "Prompt length", "completion": "Completion length", "reasoning": "Reasoning length", "scored": "Scored tokens"}
    titles["input"] = "Input length"
    for heading, lengths in found.lengths.items():
        charts.append(_chart(f"length-{heading}", titles[heading], lengths, "tokens", "records", "{:,.0f}"))
    if found.nll.count:
        q = [found.nll.quantile(share) for share in (0.5, 0.95)]
        words = f"Median −{q[0] or 0:.2f}; one token in twenty is below −{q[1] or 0:.2f}."
        words += f" {found.nll.infinite:,} tokens of no chance (−∞) are not drawn." if found.nll.infinite else ""
        spec = histogram_chart(found.nll.histogram().mirrored, "logprob of a token (nats)", "tokens", limit=0.0)
        charts.append(Chart("logprobs", "Logprobs", words, spec))
    if found.documents.count:
        q = [math.exp(found.documents.quantile(share) or 0.0) for share in (0.5, 0.05, 0.95)]
        kind = "document" if "token_ids" in found.columns else "completion"
        words = f"Median {q[0]:,.3g}; nine in ten lie between {q[1]:,.3g} and {q[2]:,.3g}."
        words += f" {found.documents.infinite:,} of infinite perplexity are not drawn." if found.documents.infinite else ""
        spec = histogram_chart(found.documents.histogram(), f"perplexity of a {kind} (logarithmic)", "records", logarithmic=True)
        charts.append(Chart("perplexity", f"Perplexity by {kind}", words, spec))
    counted = [("finish", "Finish reasons", found.finish), ("calls", "Calls of tools", found.calls)]
    counted.append(("accuracy", "Predictions", found.accuracy))
    for name, title, counts in counted:
        if counts := [(reason, count) for reason, count in counts.most_common() if count]:
            words = ", ".join(f"{reason} {100 * count / found.records:.1f} %" for reason, count in counts)
            charts.append(Chart(name, title, f"{words}.", bars(counts, "records")))
    return PageSection("distributions", "Distributions", charts=charts) if charts else None


def _chart(name: str, title: str, values: Bins, x: str, y: str, form: str) -> Chart:
    """Draws a histogram, with its median, mean and 95th percentile in words."""
    found = values.histogram()
    median, most = (form.format(values.quantile(share) or 0) for share in (0.5, 0.95))
    words = f"Median {median}, mean {values.mean or 0:,.4g}, 95 % up to {most}."
    if found.below or found.above:
        words += f" {found.below + found.above:,} far off are not drawn."
    return Chart(name, title, words, histogram_chart(found, x, y))


def rewards(found: RecordPass, dropped: Mapping[str, int]) -> PageSection | None:
    """Shows rewards by sample and group, pass@k, policy versions and errors of functions; None for a run without rewards.

    ``dropped``: groups left out on purpose, by reason. Where their rewards were all equal, pass@k of the others means nothing.
    """
    rollout = found.rollout
    if rollout is None or not (groups := rollout.sums.counts["groups"]):
        return None
    charts = [
        Chart(name, title, f"Mean {values.mean or 0:.4g}.", histogram_chart(values.histogram(), x, y))
        for name, title, values, x, y in (
            ("rewards", "Reward by sample", rollout.rewards, "reward", "samples"),
            ("groups", "Mean reward by group", rollout.means, "mean reward of a group", "groups"),
        )
        if values.count
    ]
    if DEGENERATE not in dropped and (chart := _pass_at_k(rollout)) is not None:
        charts.append(chart)
    if len(rollout.versions) > 1:
        charts.append(_versions(rollout))
    degenerate, unrated = rollout.sums.counts["degenerate"], rollout.sums.counts["unrated"]
    words = f"{degenerate:,} of {groups:,} groups ({100 * degenerate / groups:.1f} %) have nothing to compare: equal rewards, or one."
    words += f" Without a reward and in no figure here: {count_text(unrated, 'sample')}." if unrated else ""
    if drawn := rollout.sums.counts["drawn"]:
        words += f" The best sample of each group was kept; the mean over all {drawn:,} is {figure(rollout.sums.drawn.mean)}."
    tables = [_not_rated(rollout.sums.not_rated)] if rollout.sums.not_rated else []
    if versions := [
        [version or "–", f"{sums.reward.count:,}", figure(sums.reward.mean, sums.reward_error)]
        for version, sums in rollout.versions.items()
        if sums.reward.count
    ]:
        clustered = "± is the standard error, clustered by group."
        tables.append(table("Policy versions", ["version", "samples", "mean reward"], versions, words=clustered))
    return PageSection("rewards", "Rewards", words + _left_out(dropped), charts, tables)


def _left_out(dropped: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in dropped.items())
    said = f" Groups that were dropped are in no figure here: {kinds}." if kinds else ""
    return f"{said} So pass@k is not drawn: it would be that of the others." if DEGENERATE in dropped else said


def _not_rated(errors: Mapping[tuple[str, str], RewardError]) -> Table:
    """Lists each reward and kind of error, the most frequent first."""
    ordered = sorted(errors.items(), key=lambda item: (-item[1].count, item[0]))
    cells = [[f"{error.count:,}", name, kind, f"row {error.row:,}", error.text[:_MESSAGE]] for (name, kind), error in ordered]
    heading = ["samples", "reward", "error", "first", "message of the first"]
    return table("Not rated", heading, cells, left=5, words="Samples that a reward function or model gave no reward, and why.", prose=(4,))


def _pass_at_k(rollout: RolloutFigures) -> Chart | None:
    """Draws a curve for each function whose rewards are 0 and 1."""
    curves = {name: curve for name, sums in rollout.sums.functions.items() if (curve := sums.pass_curve)}
    if not curves:
        return None
    points = [
        ChartPoint(k, value, f"{name}: pass@{k} {value:.4f} ({count_text(groups, 'group')})", name)
        for name, curve in curves.items()
        for k, value, groups in curve
    ]
    words = "; ".join(
        f"{name}: " + ", ".join(f"pass@{k} {value:.3f}" for k, value, _ in dict.fromkeys((curve[0], curve[-1])))
        for name, curve in curves.items()
    )
    ks = sorted({point.x for point in points})
    return Chart("pass", "pass@k", f"{words}.", lines(points, "k (samples)", "pass@k", logarithmic_x=len(ks) > 1, ticks=ks))


def _versions(rollout: RolloutFigures) -> Chart:
    """Draws mean rewards against policy versions where these are numbers, else against their place among them."""
    points: list[ChartPoint] = []
    numbered = all(name.isdecimal() for name in rollout.versions)
    for place, (name, sums) in enumerate(rollout.versions.items(), start=1):
        if (mean := sums.reward.mean) is not None:
            error = sums.reward_error or 0.0
            label = f"version {name}: {mean:.4g} ± {error:.2g} ({count_text(sums.reward.count, 'sample')})"
            points.append(ChartPoint(int(name) if numbered else place, mean, label, "", mean - error, mean + error))
    points.sort(key=lambda point: point.x)
    heading = "policy version" if numbered else "policy version, in order of appearance"
    ticks = [point.x for point in points] if len(points) <= _TICKS else ()
    spec = lines(points, heading, "mean reward", zero=False, ticks=ticks, whole_x=True)
    return Chart("versions", "Reward by policy version", "Bars: standard error, clustered by group.", spec)
