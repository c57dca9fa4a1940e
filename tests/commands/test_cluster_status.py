"""What a run over workers tells of them: in progress, in status, and in sessions.jsonl. Workers are threads here; see ThreadFleet."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.membership import NO_WORKERS, ROWS_TO_COME
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.core.progress import Activity
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.status import run_status
from mlx_bulk.runner.store.paths import RunPaths

from ..jobs.support.bench import Bench
from ..jobs.support.cluster_runs import ROWS, SETTINGS, engine, mortal_fleet, run
from ..runner.support.thread_fleet import ThreadFleet


@dataclass
class Ended:
    """A run that has ended: its folder, and its progress as JSON."""

    paths: RunPaths
    progress: list[dict[str, Any]]


@pytest.fixture
def ended(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Ended:
    """A run over two workers, which have names."""
    fleet = ThreadFleet(engine, 2, label=lambda worker: f"mac-{worker[-1]}")
    output = bench.root / "cluster"
    config: Any = load_config(bench.write_config(rows=ROWS, output={"path": str(output)}, batch={"rows": 4, "rows_per_shard": 8}))
    work = ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS, min_workers=2, speculate=False))
    session.run_job(config, KINDS[config.job], Start(), HostProcess(), "json", work)
    fleet.end(True)
    return Ended(RunPaths(output), [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")])


def test_the_machine_of_each_worker_is_noted_also_where_it_has_a_name(ended: Ended):
    noted = [line for line in read_lines(ended.paths.sessions) if line["event"] == "worker"]
    assert sorted(line["worker"] for line in noted) == ["worker-1", "worker-2"]
    for line in noted:
        assert line["host"] == "here"
        assert line["facts"]["name"] == f"mac-{line['worker'][-1]}"
        assert line["session"]["device"]
        assert line["session"]["versions"]["mlx"]
    assert {line["worker"] for line in read_lines(ended.paths.workers)} <= {line["worker"] for line in noted}


def test_progress_and_status_tell_of_each_worker(ended: Ended):
    assert ended.progress[0]["workers"] == []
    last = ended.progress[-1]["workers"]
    assert {each["worker"] for each in last} == {"worker-1", "worker-2"}
    assert sum(each["rows"] for each in last) == len(ROWS)
    assert all(each["peak_memory_bytes"] and each["last_seen"] for each in last)
    shown = {(part.worker, part.rows, part.peak_memory_bytes) for part in run_status(ended.paths.root).workers}
    assert shown == {(each["worker"], each["rows"], each["peak_memory_bytes"]) for each in last}


@pytest.mark.parametrize("deterministic", [False, True])
def test_lines_of_workers_name_each_row_also_those_of_one_that_died(bench: Bench, deterministic: bool):
    fleet, _ = mortal_fleet(2, 4)
    work = ClusterWork(lambda: fleet, ClusterConfig(**SETTINGS, speculate=False))
    assert run(bench, work, "cluster", batch={"deterministic": deterministic}).complete
    fleet.end(True)
    lines = [line for line in read_lines(RunPaths(bench.root / "cluster").workers) if "rows" in line]
    named = [row for line in lines for first, last in line["ranges"] for row in range(first, last + 1)]
    assert sorted(set(named)) == list(range(len(ROWS)))
    assert sum(line["rows"] for line in lines) == len(named)
    if not deterministic:  # else the shard of the one that died is done again as a whole
        assert len(named) == len(ROWS)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a driver does, step by step."""
    steps: list[str] = []
    monkeypatch.setattr(Activity, "doing", lambda self, what: steps.append(what))
    return steps


def run_over(bench: Bench, workers: int, dies_with: int, settings: ClusterConfig) -> None:
    fleet, _ = mortal_fleet(workers, dies_with)
    assert run(bench, ClusterWork(lambda: fleet, settings), "cluster").complete
    fleet.end(True)


def test_work_of_workers_is_a_step_and_a_run_that_has_none_says_so(bench: Bench, told: list[str]):
    """Else a run whose workers are fine is told as stalled, and one that waits for workers as one that waits for rows."""
    run_over(bench, 1, 4, ClusterConfig(workers=1, lease_seconds=0.05))
    assert [told.count(NO_WORKERS), told.index(NO_WORKERS) < told.index(ROWS_TO_COME)] == [2, True]
    assert told.count(ROWS_TO_COME) > 4  # one for each worker that becomes ready, and more as they work


def test_a_run_that_needs_more_workers_says_how_many_are_there(bench: Bench, told: list[str]):
    run_over(bench, 2, 99, ClusterConfig(workers=2, min_workers=2))
    assert told.index(f"{NO_WORKERS}: 1 of 2 are ready") < told.index(ROWS_TO_COME)
