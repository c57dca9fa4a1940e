"""Reads from a run's records which policies sampled them.

Reads only files whose bytes recovery has checked. Does not know networks.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ..core.policy import Policy
from ..core.shard_layout import Layout
from ..store import journal
from ..store.commit_log import read_commits
from ..store.part_file import read_part
from ..store.paths import RunPaths
from ..store.results import read_results


def policy_at_start_of(run: RunPaths, layout: Layout, around: int) -> str | None:
    """Returns ``Policy.name`` of the policy that a round was begun with, None for a round without records. Raises OSError.

    That is the policy of the round's last record, in the order of shards, committed or in a journal.
    """
    for batch in _last_records(run, layout, around):
        if batch.num_rows:
            last = batch.select(["policy_version", "policy_sha"]).slice(batch.num_rows - 1).to_pylist()[0]
            return Policy(last["policy_version"], last["policy_sha"], None).name
    return None


def _last_records(run: RunPaths, layout: Layout, around: int) -> Iterator[pa.RecordBatch]:
    commits = read_commits(run).commits
    for shard in reversed(range(around * layout.shards_a_round, (around + 1) * layout.shards_a_round)):
        if run.journal_of(shard).exists() and (content := journal.peek(run.journal_of(shard))[0]) is not None:
            yield from reversed(content.results)
        if (commit := commits.get(shard)) is not None and commit.records:
            yield from reversed(list(read_part(run.results_part(shard, commit.generation))))


def policies_in_records(run: Path) -> list[str]:
    """Returns ``Policy.name`` of all policies in a rollout's records, the oldest first."""
    names = {name for batch in read_results(run, ["policy_version", "policy_sha"]) for name in policy_names(batch)}
    return sorted(names, key=lambda name: (int(name.split("-")[0]), name))


def policy_names(batch: pa.RecordBatch) -> list[str]:
    """Returns ``Policy.name`` of each record's policy."""
    versions, shas = batch.column("policy_version").to_pylist(), batch.column("policy_sha").to_pylist()
    return [f"{version}-{str(sha)[:12]}" for version, sha in zip(versions, shas, strict=True)]
