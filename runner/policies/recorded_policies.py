"""Reads from a run's records which policies sampled them.

Reads only files whose bytes recovery has checked. Does not know networks.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from ..core.shard_layout import Layout
from ..store import journal
from ..store.commit_log import Commit, read_commits
from ..store.part_file import read_part
from ..store.paths import RunPaths
from ..store.results import read_results


def policy_at_start_of(run: RunPaths, layout: Layout, around: int) -> str | None:
    """Returns ``Policy.name`` of the policy that a round was begun with, None for a round without records. Raises OSError.

    That is the policy of the round's last record, in the order of shards, committed or in a journal.
    """
    shards = range(around * layout.shards_a_round, (around + 1) * layout.shards_a_round)
    return next((name for _, name in last_policies(run, reversed(shards))), None)


def last_policies(run: RunPaths, shards: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yields each of the shards that has records, with ``Policy.name`` of the policy of its last one. Raises OSError."""
    commits = read_commits(run).commits
    for shard in shards:
        for batch in _last_records(run, shard, commits.get(shard)):
            if batch.num_rows:
                yield shard, policy_names(batch.slice(batch.num_rows - 1))[0]
                break


def _last_records(run: RunPaths, shard: int, commit: Commit | None) -> Iterator[pa.RecordBatch]:
    if run.journal_of(shard).exists() and (content := journal.peek(run.journal_of(shard))[0]) is not None:
        yield from reversed(content.results)
    if commit is not None and commit.records:
        yield from reversed(list(read_part(run.results_part(shard, commit.generation))))


def policies_in_records(run: Path) -> list[str]:
    """Returns ``Policy.name`` of all policies in a rollout's records, the oldest first."""
    names = {name for batch in read_results(run, ["policy_version", "policy_sha"]) for name in policy_names(batch)}
    return sorted(names, key=lambda name: (int(name.split("-")[0]), name))


def policy_names(batch: pa.RecordBatch) -> list[str]:
    """Returns ``Policy.name`` of each record's policy."""
    versions, shas = batch.column("policy_version").to_pylist(), batch.column("policy_sha").to_pylist()
    return [f"{version}-{str(sha)[:12]}" for version, sha in zip(versions, shas, strict=True)]
