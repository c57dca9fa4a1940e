"""Makes batches of rollout records as in a run's parts, with one reward function, ``right``, whose rewards are the samples'."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

Sample = tuple[int, int, int, float | None]  # round, row, sample, reward


def batches(samples: Sequence[Sample], cuts: Sequence[int] = (), versions: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the samples in batches that end at ``cuts``. ``versions``: each sample's policy version, by default its round."""
    names = [str(turn) for turn, *_ in samples] if versions is None else versions
    edges = [0, *sorted(cut for cut in cuts if cut <= len(samples)), len(samples)]
    for start, end in pairwise(edges):
        rounds, rows, numbers, rewards = (list(values) for values in zip(*samples[start:end], strict=True)) if end > start else ([],) * 4
        columns = {
            "round": pa.array(rounds, pa.int32()),
            "row": pa.array(rows, pa.int64()),
            "sample": pa.array(numbers, pa.int32()),
            "policy_version": pa.array(names[start:end], pa.string()),
            "truncated": pa.array([False] * (end - start), pa.bool_()),
            "completion_tokens": pa.array([1] * (end - start), pa.int32()),
            "reward": pa.array(rewards, pa.float64()),
            "rewards": pa.array([{"right": reward} for reward in rewards], pa.struct([("right", pa.float64())])),
            "reward_errors": pa.array([{"right": None}] * (end - start), pa.struct([("right", pa.string())])),
        }
        yield pa.RecordBatch.from_pydict(columns)
