"""Tests a run over a group: one model over two processes, which are one worker to the driver."""

from pathlib import Path

import pytest

pytest.importorskip("distributed")
from ..jobs.support.group_runs import group_run, parts, plain_run, write_job, write_model

CLUSTER = {"listen": "127.0.0.1:0", "wait": 60, "lease_seconds": 1}

pytestmark = pytest.mark.slow


def test_a_pipeline_of_two_writes_the_bytes_of_one_process(tmp_path: Path):
    write_model(tmp_path / "model")
    plain_run(write_job(tmp_path, "plain", batch={"deterministic": True}))
    with group_run(tmp_path, write_job(tmp_path, "over", batch={"deterministic": True}, cluster=CLUSTER)) as run:
        code, said = run.end()
        assert code == 0, said + run.log.read_text()
    assert run.worker.returncode == 0, run.log.read_text()
    assert parts(tmp_path / "over") == parts(tmp_path / "plain")
