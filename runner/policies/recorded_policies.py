"""Which policy a round was begun with: that of its newest records, committed or in journals.

Reads what has been recovered, whose bytes are checked. Knows no network.
"""

from collections.abc import Iterator

import pyarrow as pa

from ..core.policy import Policy
from ..core.shard_layout import Layout
from ..store import journal
from ..store.commit_log import read_commits
from ..store.part_file import read_part
from ..store.paths import RunPaths


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
