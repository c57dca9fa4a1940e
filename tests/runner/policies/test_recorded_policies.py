"""Tests the policy that the records of a round name: the last one of that round, in parts and in journals."""

from pathlib import Path

import pyarrow as pa
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.policies.recorded_policies import policy_at_start_of
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import Commit, append_commit
from mlx_bulk.runner.store.journal import Header

from ..support.run_dirs import RUN

LAYOUT = Layout(rows=6, rows_per_shard=2, rounds=3)
SHA = "0123456789abcdef"


def records(version: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"row": [0], "policy_version": [version], "policy_sha": [SHA]})


def test_each_round_has_the_policy_of_its_own_last_records(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        run.bind(RUN)
        for shard, version in ((0, 2), (1, 2), (2, 3)):
            append_commit(run, Commit(shard, 1, 2, 1, 0, "ab", 10, None, 0))
            with pa.ipc.new_file(str(run.results_part(shard, 1)), records(version).schema) as part:
                part.write_batch(records(version))
        append_commit(run, Commit(3, 1, 2, 0, 2, "ab", 10, "cd", 10))  # of round 1, with no record
        assert [policy_at_start_of(run, LAYOUT, around) for around in range(3)] == ["3-0123456789ab", None, None]
        journal.begin(run.journal_of(4), Header(4, 1))
        assert policy_at_start_of(run, LAYOUT, 1) is None
        for version in (7, 8):
            journal.append(run.journal_of(4), journal.RESULTS, records(version))
        assert [policy_at_start_of(run, LAYOUT, around) for around in range(3)] == ["3-0123456789ab", "8-0123456789ab", None]
