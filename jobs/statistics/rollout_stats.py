"""Statistics of a rollout run's records: groups, rewards, truncation and pass@k. Over all, by round, and by policy version.

They follow from the records alone, which are read in input order. Groups that were dropped have no records; they are counted.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...runner.core.errors import DROP
from ...runner.store.results import read_errors, read_results
from .advantages import DEGENERATE
from .rollout_groups import GroupSplitter, RolloutGroup
from .rollout_sums import FunctionSums, RolloutSums, powers

_REWARDS = pa.struct([("mean", pa.float64()), ("std", pa.float64()), ("count", pa.int64()), ("errors", pa.int64())])
_ERRORS = pa.struct([("count", pa.int64()), ("first", pa.string())])
_COUNTS = ("groups", "samples", "degenerate", "unrated", "truncated", "completion_tokens")

Part = tuple[str, str]  # what the groups have in common (nothing, their round or their policy version), and its value
_ALL: Part = ("all", "all")


@dataclass(slots=True)
class _Figures:
    """Sums over a part of the groups. dropped: groups without records that belong to it, None where nobody knows.

    biased: among those are groups whose rewards were all equal, so pass@k of the others means nothing.
    """

    sums: RolloutSums = field(default_factory=RolloutSums)
    dropped: int | None = 0
    biased: bool = False

    def row(self, ks: list[int]) -> dict[str, Any]:
        """Returns the figures by column; pass@k for each of ``ks``."""
        sums, functions = self.sums, self.sums.functions
        return {
            **{name: sums.counts[name] for name in _COUNTS},
            "dropped": self.dropped,
            "reward": sums.reward.mean,
            "reward_std": sums.reward.std,
            "reward_stderr": sums.reward_error,
            "stale": sums.counts["stale"],
            "drawn": sums.counts["drawn"],
            "drawn_reward": sums.drawn.mean,
            "drawn_reward_std": sums.drawn.std,
            "rewards": {name: _rewards(function) for name, function in functions.items()},
            "pass_at": {name: None if self.biased else _pass_at(function, ks) for name, function in functions.items()},
            "reward_errors": {name: _errors(function) for name, function in functions.items()},
        }


def rollout_statistics(run: Path) -> pa.Table:
    """Returns one row over all records of the run directory ``run``, then one a round, then one a policy version.

    ``of`` and ``group`` say which. groups, samples; degenerate: groups with fewer than two rewards or only equal ones; unrated:
    samples without a reward; truncated: samples that ended by length; completion_tokens: of all samples. dropped: groups that were
    left out on purpose. They are in no other figure, and null for a policy version where there are any. stale: groups that are marked so,
    where the run bounds staleness. reward, reward_std,
    reward_stderr (clustered by prompt). rewards: of each function mean, std, count and errors. reward_errors: of each function and
    kind how many, and the first's text. pass_at: of each function whose rewards are all 0 or 1, a share for each k; null where
    degenerate groups were dropped. With ``select: best`` all of these are of the samples that were kept, and drawn, drawn_reward,
    drawn_reward_std of all that were drawn.
    """
    parts = _collect(run)
    whole = parts[_ALL].sums
    ks = powers(whole.most_samples)
    rows = [{"of": of, "group": group, **figures.row(ks)} for (of, group), figures in parts.items()]
    kinds = sorted({kind for _, kind in whole.not_rated})
    schema = _schema(list(whole.functions), ks, kinds, selects=bool(whole.counts["drawn"]), bounds="stale" in whole.counts)
    return pa.Table.from_pylist(rows, schema)


def _collect(run: Path) -> dict[Part, _Figures]:
    """Returns the figures of each part: all, then rounds, then policy versions."""
    parts = {_ALL: _Figures()}
    for group in _groups(run):
        for part in (_ALL, ("round", str(group.round)), ("policy_version", group.policy_version)):
            parts.setdefault(part, _Figures()).sums.add(group)
    by_round = _dropped(run)
    in_all = sum(by_round.values(), Counter[str]())
    for (of, name), figures in parts.items():
        dropped = by_round.get(name, Counter[str]()) if of == "round" else in_all
        figures.dropped = None if of == "policy_version" and dropped else dropped.total()
        figures.biased = DEGENERATE in dropped
    order = {"all": 0, "round": 1, "policy_version": 2}
    return dict(sorted(parts.items(), key=lambda item: (order[item[0][0]], int(item[0][1]) if item[0][1].isdigit() else 0)))


def _groups(run: Path) -> Iterator[RolloutGroup]:
    splitter = GroupSplitter()
    for batch in read_results(run):
        yield from splitter.add(batch)
    yield from splitter.finish()


def _dropped(run: Path) -> dict[str, Counter[str]]:
    """Counts the groups that were left out on purpose: round -> reason -> groups."""
    counts: dict[str, Counter[str]] = {}
    for batch in read_errors(run, ["round", "stage", "error"]):
        for failure in batch.to_pylist():
            if failure["stage"] == DROP:
                counts.setdefault(str(failure["round"]), Counter())[failure["error"]] += 1
    return counts


def _schema(functions: list[str], ks: list[int], kinds: list[str], selects: bool, bounds: bool) -> pa.Schema:
    """Returns the table's schema. kinds: of reasons why samples have no reward.

    selects: the best sample of a group was kept. bounds: groups are marked as stale or not.
    """
    counts = (*_COUNTS, "dropped", "stale") if bounds else (*_COUNTS, "dropped")
    fields = [("of", pa.string()), ("group", pa.string()), *((name, pa.int64()) for name in counts)]
    fields += [(name, pa.float64()) for name in ("reward", "reward_std", "reward_stderr")]
    if selects:
        fields += [("drawn", pa.int64()), ("drawn_reward", pa.float64()), ("drawn_reward_std", pa.float64())]
    if functions:
        per_k = pa.struct([(str(k), pa.float64()) for k in ks])
        fields += [("rewards", pa.struct([(name, _REWARDS) for name in functions]))]
        fields += [("pass_at", pa.struct([(name, per_k) for name in functions]))]
    if kinds:
        per_kind = pa.struct([(kind, _ERRORS) for kind in kinds])
        fields += [("reward_errors", pa.struct([(name, per_kind) for name in functions]))]
    return pa.schema(fields)


def _rewards(function: FunctionSums) -> dict[str, Any]:
    moments, errors = function.moments, sum(error.count for error in function.errors.values())
    return {"mean": moments.mean, "std": moments.std, "count": moments.count, "errors": errors}


def _pass_at(function: FunctionSums, ks: list[int]) -> dict[str, float | None] | None:
    if not function.binary or not function.moments.count:
        return None
    points = {k: function.pass_at(k) for k in ks}
    return {str(k): None if point is None else point[0] for k, point in points.items()}


def _errors(function: FunctionSums) -> dict[str, Any]:
    return {kind: {"count": error.count, "first": error.text} for kind, error in function.errors.items()}
