"""Which policy a round was begun with: that of its newest records, committed or in journals.

Reads what has been recovered, whose bytes are checked. Knows no network.
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


def begun_with(run: RunPaths, layout: Layout, around: int) -> str | None:
    """``Policy.name`` of the last records of round ``around``, by shards; None where the round has none. Raises OSError."""
    for batch in _last_records(run, layout, around):
        if batch.num_rows:
            last = batch.select(["policy_version", "policy_sha"]).slice(batch.num_rows - 1).to_pylist()[0]
            return Policy(last["policy_version"], last["policy_sha"], None).name
    return None


def _last_records(run: RunPaths, layout: Layout, around: int) -> Iterator[pa.RecordBatch]:
    commits = read_commits(run).commits
    for shard in reversed(range(around * layout.shards_a_round, (around + 1) * layout.shards_a_round)):
        if run.journal_of(shard).exists() and (kept := journal.peek(run.journal_of(shard))[0]) is not None:
            yield from reversed(kept.results)
        if (commit := commits.get(shard)) is not None and commit.records:
            yield from reversed(list(read_part(run.results_part(shard, commit.generation))))


def policies_of(run: Path) -> list[str]:
    """The policies of a rollout's records, by ``Policy.name``, the oldest first."""
    found = {name for batch in read_results(run, ["policy_version", "policy_sha"]) for name in policy_names(batch)}
    return sorted(found, key=lambda name: (int(name.split("-")[0]), name))


def policy_names(batch: pa.RecordBatch) -> list[str]:
    """``Policy.name`` of each record's."""
    versions, shas = batch.column("policy_version").to_pylist(), batch.column("policy_sha").to_pylist()
    return [f"{version}-{str(sha)[:12]}" for version, sha in zip(versions, shas, strict=True)]
