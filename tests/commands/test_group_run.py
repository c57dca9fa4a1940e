"""Tests a run over a group: one model over two processes, which are one worker to the driver."""

import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

pytest.importorskip("distributed")
from ..jobs.support.bench import table_of
from ..jobs.support.group_runs import PATIENCE, GroupRun, group_run, parts, plain_run, write_job, write_model

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


STALL = 5.0
LONG = {"rows": 64, "sampling": {"max_tokens": 32, "temperature": 1.0}, "batch": {"rows_per_shard": 8}}
LOADED = "batches of up to 8 rows"  # each rank says so


def until(run: GroupRun, reached: Callable[[], bool]) -> float:
    """Waits, and returns the seconds that it took."""
    began = monotonic()
    while not reached():
        assert run.driver.poll() is None, "the run is over"
        assert monotonic() - began < PATIENCE, run.log.read_text()
        sleep(0.02)
    return monotonic() - began


@pytest.mark.parametrize(
    ("number", "rank", "most"), [(signal.SIGKILL, 1, 5.0), (signal.SIGSTOP, 1, STALL + 10), (signal.SIGSTOP, 0, STALL + 10)]
)
def test_a_rank_that_dies_or_hangs_costs_nothing(tmp_path: Path, number: int, most: float, rank: int):
    """``most``: seconds besides the load after which the group is back."""
    write_model(tmp_path / "model")
    config = write_job(tmp_path, "over", **LONG, cluster=CLUSTER)
    with group_run(tmp_path, config, ["--stall-seconds", f"{STALL:g}"]) as run:
        load = until(run, lambda: run.log.read_text().count(LOADED) == 2)
        until(run, lambda: any((run.output / "results").glob("*.arrow")))
        run.ranks()[rank].send_signal(number)
        assert until(run, lambda: run.log.read_text().count(LOADED) == 4) < load + most
        code, said = run.end()
        assert code == 0, said + run.log.read_text()
    assert ("died of SIGKILL" in said) == (number == signal.SIGKILL)
    assert ("saw no step of the others: its processes start again" in said) == (number == signal.SIGSTOP)
    assert "before the model had any row" not in said
    records = table_of(tmp_path / "over/results").to_pylist()
    assert sorted(record["row"] for record in records) == list(range(64))
    assert not list((tmp_path / "over/errors").glob("*.arrow"))
