"""Statistics of a rollout run's records: groups, rewards, what was truncated, pass@k; over all, and by round and policy version.

A function of the records alone, read in input order and a group at a time. A group is what has one ``row`` in one ``round``; its
records stand together. Groups that were dropped have none, and are counted. Knows reward functions and policies by their names in
the records only.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...runner.core.errors import DROP
from ...runner.store.results import read_errors, read_results
from .advantages import DEGENERATE, is_degenerate
from .standard_errors import clustered_error

_READ = ("row", "round", "policy_version", "truncated", "completion_tokens", "reward", "rewards", "reward_errors")
_RATED = pa.struct([("mean", pa.float64()), ("std", pa.float64()), ("count", pa.int64()), ("errors", pa.int64())])
_FAILED = pa.struct([("count", pa.int64()), ("first", pa.string())])
_COUNTS = ("groups", "samples", "degenerate", "unrated", "truncated", "completion_tokens")

Record = Mapping[str, Any]


@dataclass(slots=True)
class Moments:
    """Mean and deviation of numbers that come one by one (Welford 1962)."""

    count: int = 0
    sum: float = 0.0
    _mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Takes one number in."""
        self.count += 1
        self.sum += value
        apart = value - self._mean
        self._mean += apart / self.count
        self._squares += apart * (value - self._mean)

    @property
    def mean(self) -> float | None:
        """None without numbers."""
        return self.sum / self.count if self.count else None

    @property
    def std(self) -> float | None:
        """With n − 1; None for fewer than two numbers."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else None


@dataclass(slots=True)
class Rated:
    """What one function gave. errors: a count a kind, first: the text of each kind's first.

    hits: groups by (samples that it rated, of them 1), while all are 0 or 1.
    """

    moments: Moments = field(default_factory=Moments)
    errors: Counter[str] = field(default_factory=Counter[str])
    first: dict[str, str] = field(default_factory=dict[str, str])
    hits: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    binary: bool = True

    def add(self, rewards: list[float | None], errors: list[str | None]) -> None:
        """Takes a group in."""
        rated = [reward for reward in rewards if reward is not None]
        for reward in rated:
            self.moments.add(reward)
        for error in errors:
            if error is not None:
                kind, _, text = error.partition(": ")
                self.errors[kind] += 1
                self.first.setdefault(kind, text)
        self.binary = self.binary and all(reward in (0.0, 1.0) for reward in rated)
        self.hits[len(rated), int(sum(rated)) if self.binary else 0] += 1

    def pass_at(self, k: int) -> float | None:
        """The chance that one of k samples has reward 1, the mean over the groups with k or more; None where that is not to be had."""
        enough = {found: groups for found, groups in self.hits.items() if found[0] >= k}
        if not self.binary or not enough:
            return None
        return math.fsum(groups * pass_at_k(n, hits, k) for (n, hits), groups in enough.items()) / sum(enough.values())


@dataclass(slots=True)
class Part:
    """A part of the records: all, those of a round, or those of a policy version."""

    counts: Counter[str] = field(default_factory=Counter[str])
    reward: Moments = field(default_factory=Moments)
    functions: dict[str, Rated] = field(default_factory=dict[str, Rated])
    most: int = 0  # samples of a group
    dropped: int | None = 0  # groups without records; None where they cannot be told apart
    one_sided: bool = False  # groups with only equal rewards are among those: the right and the wrong throughout
    _sums: "array[float]" = field(default_factory=lambda: array("d"))
    _sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, group: list[Record]) -> None:
        """Takes a group in."""
        rewards = [record.get("reward") for record in group]
        rated = [reward for reward in rewards if reward is not None]
        self.most = max(self.most, len(group))
        self.counts.update(groups=1, samples=len(group), truncated=sum(bool(record["truncated"]) for record in group))
        self.counts.update(completion_tokens=sum(record["completion_tokens"] for record in group))
        if "reward" in group[0]:
            self.counts.update(degenerate=int(is_degenerate(rewards)), unrated=len(group) - len(rated))
        for reward in rated:
            self.reward.add(reward)
        self._sums.append(math.fsum(rated))
        self._sizes.append(len(rated))
        for name in group[0].get("rewards") or ():
            errors = [record["reward_errors"][name] for record in group]
            self.functions.setdefault(name, Rated()).add([record["rewards"][name] for record in group], errors)

    @property
    def error(self) -> float | None:
        """Standard error of the mean reward, clustered by group."""
        return clustered_error(np.array(self._sums), np.array(self._sizes, np.int64))


def pass_at_k(n: int, hits: int, k: int) -> float:
    """The chance that one of k samples drawn from n, of which ``hits`` are right, is right: ``1 − C(n − hits, k) / C(n, k)``.

    The unbiased estimate of Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, equation 1.

    >>> pass_at_k(8, 1, 1), pass_at_k(8, 1, 8), pass_at_k(4, 2, 2)
    (0.125, 1.0, 0.8333333333333334)
    """
    return 1 - math.comb(n - hits, k) / math.comb(n, k)


def collect_rollouts(run: Path) -> dict[tuple[str, str], Part]:
    """The committed records of the run directory ``run`` by what they are a part of: all, then rounds, then policy versions."""
    parts: dict[tuple[str, str], Part] = {("all", "all"): Part()}
    for _, records in groupby(_records(run), key=itemgetter("row", "round")):
        group = list(records)
        for part in (("all", "all"), ("round", str(group[0]["round"])), ("policy_version", str(group[0]["policy_version"]))):
            parts.setdefault(part, Part()).add(group)
    left_out = _dropped(run)
    in_all = sum(left_out.values(), Counter[str]())
    for (of, name), part in parts.items():
        kinds = left_out.get(name, Counter[str]()) if of == "round" else in_all
        part.dropped = None if of == "policy_version" and kinds else kinds.total()
        part.one_sided = DEGENERATE in kinds
    order = {"all": 0, "round": 1, "policy_version": 2}
    return dict(sorted(parts.items(), key=lambda item: (order[item[0][0]], int(item[0][1]) if item[0][1].isdigit() else 0)))


def rollout_statistics(run: Path) -> pa.Table:
    """One row over all records, then one a round, then one a policy version; ``of`` and ``group`` say which.

    groups, samples; degenerate: groups with fewer than two rewards or only equal ones; unrated: samples without a reward; truncated:
    samples that ended by length; completion_tokens: of all samples. dropped: groups that were left out on purpose, which are in no other
    figure; null for a policy version where there are any. reward, reward_std, reward_stderr (clustered by group).
    rewards: of each function mean, std, count and errors; reward_errors: of each function and kind how many, and the first's text;
    pass_at: of each function whose rewards are all 0 or 1, a share a k; null where degenerate groups were dropped.
    """
    parts = collect_rollouts(run)
    whole = next(iter(parts.values()))
    ks = sorted({1 << power for power in range(whole.most.bit_length())} | {whole.most}) if whole.most else []
    kinds = sorted({kind for rated in whole.functions.values() for kind in rated.errors})
    per_k = pa.struct([(str(k), pa.float64()) for k in ks])
    per_kind = pa.struct([(kind, _FAILED) for kind in kinds])
    names = list(whole.functions)
    schema = pa.schema(
        [("of", pa.string()), ("group", pa.string()), *((name, pa.int64()) for name in (*_COUNTS, "dropped"))]
        + [(name, pa.float64()) for name in ("reward", "reward_std", "reward_stderr")]
        + (
            [("rewards", pa.struct([(name, _RATED) for name in names])), ("pass_at", pa.struct([(name, per_k) for name in names]))]
            if names
            else []
        )
        + ([("reward_errors", pa.struct([(name, per_kind) for name in names]))] if kinds else [])
    )
    rows = [{"of": of, "group": group, **_figures(part, ks)} for (of, group), part in parts.items()]
    return pa.Table.from_pylist(rows, schema)


def _figures(part: Part, ks: list[int]) -> dict[str, Any]:
    functions = part.functions.items()
    return {
        **{name: part.counts[name] for name in _COUNTS},
        "dropped": part.dropped,
        "reward": part.reward.mean,
        "reward_std": part.reward.std,
        "reward_stderr": part.error,
        "rewards": {name: _rated(rated) for name, rated in functions},
        "pass_at": {
            name: {str(k): rated.pass_at(k) for k in ks} if rated.binary and rated.moments.count and not part.one_sided else None
            for name, rated in functions
        },
        "reward_errors": {name: _failed(rated) for name, rated in functions},
    }


def _rated(rated: Rated) -> dict[str, Any]:
    moments = rated.moments
    return {"mean": moments.mean, "std": moments.std, "count": moments.count, "errors": rated.errors.total()}


def _failed(rated: Rated) -> dict[str, Any]:
    return {kind: {"count": count, "first": rated.first[kind]} for kind, count in rated.errors.items()}


def _dropped(run: Path) -> dict[str, Counter[str]]:
    """By round how many groups were left out on purpose, by why."""
    found: dict[str, Counter[str]] = {}
    for batch in read_errors(run, ["round", "stage", "error"]):
        for each in batch.to_pylist():
            if each["stage"] == DROP:
                found.setdefault(str(each["round"]), Counter())[each["error"]] += 1
    return found


def _records(run: Path) -> Iterator[Record]:
    for batch in read_results(run):
        names = [name for name in _READ if name in batch.schema.names]
        for start in range(0, batch.num_rows, 1024):
            yield from batch.slice(start, 1024).select(names).to_pylist()
