"""Splits the records of a rollout run into groups. A group is the samples of one row in one round.

Records come in input order, so those of a group follow each other. A batch of records may begin or end inside a group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

# The columns that a group is made of. Records have the rewards' where the run has any, the last of them with ``select: best``, and
# ``stale`` where ``policy.max_staleness`` is set.
_REWARD_COLUMNS = ("reward", "rewards", "reward_errors", "group_rewards")
GROUP_COLUMNS = ("row", "round", "sample", "policy_version", "truncated", "completion_tokens", *_REWARD_COLUMNS, "stale")
_SLICE = 1024  # records that are Python objects at a time

_Path = tuple[str, ...]  # a column, or a column and a field of its struct


@dataclass(slots=True, frozen=True)
class RolloutGroup:
    """The n samples of one row in one round, in their order.

    samples: [n], the samples' numbers. truncated: how many ended by length. completion_tokens: of all samples together.
    rewards: [n], None for a sample without a reward; None as a whole where the run has no reward functions.
    by_function: reward -> [n], what it gave. errors: reward -> [n], why it gave nothing, as ``kind: text``. drawn: rewards of all samples
    that were drawn, where the best alone has a record; None where each has one. stale: the policy was too far behind; None where the run
    sets no bound.
    """

    round: int
    row: int
    policy_version: str
    samples: list[int]
    truncated: int
    completion_tokens: int
    rewards: list[float | None] | None
    by_function: dict[str, list[float | None]]
    errors: dict[str, list[str | None]]
    drawn: list[float | None] | None = None
    stale: bool | None = None


class GroupSplitter:
    """Takes records batch by batch and returns groups as they become whole."""

    def __init__(self) -> None:
        self._open: dict[_Path, list[Any]] = {}  # columns of the last group, which the next batch may continue

    def add(self, batch: pa.RecordBatch) -> list[RolloutGroup]:
        """Returns the groups that end before the last record. ``batch`` has ``GROUP_COLUMNS``, as far as its run has them."""
        groups: list[RolloutGroup] = []
        for start in range(0, batch.num_rows, _SLICE):
            for path, values in _columns(batch.slice(start, _SLICE)):
                self._open.setdefault(path, []).extend(values)
            identities = list(zip(self._open["round",], self._open["row",], strict=True))
            starts = [0, *(at + 1 for at, (one, other) in enumerate(pairwise(identities)) if one != other)]
            groups += [_group({path: values[a:b] for path, values in self._open.items()}) for a, b in pairwise(starts)]
            self._open = {path: values[starts[-1] :] for path, values in self._open.items()}
        return groups

    def finish(self) -> list[RolloutGroup]:
        """Returns the last group, which no record follows; nothing where there were no records."""
        groups = [_group(self._open)] if self._open else []
        self._open = {}
        return groups


def _columns(batch: pa.RecordBatch) -> Iterator[tuple[_Path, list[Any]]]:
    """Yields the columns of a group as lists, with a list for each reward function."""
    for name in GROUP_COLUMNS:
        if name not in batch.schema.names:
            continue
        column = batch.column(name)
        if isinstance(column, pa.StructArray):
            for function, values in zip(column.type, column.flatten(), strict=True):
                yield (name, function.name), values.to_pylist()
        else:
            yield (name,), column.to_pylist()


def _group(columns: dict[_Path, list[Any]]) -> RolloutGroup:
    return RolloutGroup(
        columns["round",][0],
        columns["row",][0],
        str(columns["policy_version",][0]),
        columns["sample",],
        sum(columns["truncated",]),
        sum(columns["completion_tokens",]),
        columns.get(("reward",)),
        {path[1]: values for path, values in columns.items() if path[0] == "rewards"},
        {path[1]: values for path, values in columns.items() if path[0] == "reward_errors"},
        columns["group_rewards",][0] if ("group_rewards",) in columns else None,
        columns["stale",][0] if ("stale",) in columns else None,
    )
