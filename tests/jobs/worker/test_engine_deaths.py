"""Tests a run over one worker, with its agent, an engine's process, and a connection on loopback, whatever dies."""

import json
import logging
import math
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.supervision.crash_suspects import Suspects
from mlx_bulk.jobs.worker.agent import Agent, Stay
from mlx_bulk.jobs.worker.engine_process import EngineProcess
from mlx_bulk.jobs.worker.introduction import first_hello
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.runs.summary import Summary

from ...runner.pipeline.test_progress_display import heard
from ..support.bench import Bench, Record, table_of

pytest.importorskip("distributed")
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.network.dask_fleet import DaskFleet
from mlx_bulk.runner.network.dask_link import DriverLink

PATIENCE = 60.0  # seconds after which a test that waits has failed
ENGINE = [sys.executable, "-P", "-m", "mlx_bulk.jobs", "worker-engine"]
ABORTING = str(Path(__file__).parents[1] / "support" / "aborting_engine.py")
ROWS: list[Record] = [{"q": "word " * (1 + row % 5)} for row in range(24)]
BATCH: dict[str, Any] = {"rows": 8, "rows_per_shard": 12}


def over_a_worker(bench: Bench, command: list[str], **sections: Any) -> Summary:
    """Runs a job whose engine is the process of ``command``."""
    fleet = DaskFleet("127.0.0.1:0")

    def start(suspects: Suspects, inbox: "SimpleQueue[Any]") -> EngineProcess:
        return EngineProcess(command, suspects, inbox)

    agent = Agent(DriverLink(fleet.address), first_hello("one"), start, Stay(once=True, wait=PATIENCE), SimpleQueue())
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    batch = {**BATCH, **sections.pop("batch", {})}
    config: Any = load_config(bench.write_config(rows=ROWS, batch=batch, output={"path": str(bench.root / "over")}, **sections))
    work = ClusterWork(lambda: fleet, ClusterConfig(workers=1))
    summary = session.run_job(config, KINDS[config.job], Start(), HostProcess(), "nothing", work)
    work.close(True)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return summary


@pytest.mark.slow
def test_a_worker_in_processes_of_its_own_writes_the_same_records(bench: Bench):
    plain = bench.run(rows=ROWS, batch=BATCH)
    summary = over_a_worker(bench, ENGINE)
    assert (summary.complete, summary.records, summary.errors) == (True, 24, 0)
    records = table_of(bench.root / "over/results").to_pylist()
    assert [record["completion"] for record in records] == [record["completion"] for record in plain.records]


@pytest.mark.slow
def test_a_row_that_kills_the_engine_ends_alone_in_the_errors(bench: Bench):
    plain = bench.run(rows=ROWS, batch=BATCH)
    with heard() as handler:
        handler.setLevel(logging.WARNING)
        summary = over_a_worker(bench, [sys.executable, ABORTING, "6", str(bench.root / "deaths")])
    assert (summary.complete, summary.records, summary.errors) == (True, 23, 1)
    assert len((bench.root / "deaths").read_text()) <= math.log2(BATCH["rows"]) + 3
    records, (failure,) = table_of(bench.root / "over/results").to_pylist(), table_of(bench.root / "over/errors").to_pylist()
    assert [record["completion"] for record in records] == [each["completion"] for each in plain.records if each["row"] != 6]
    assert (failure["row"], failure["error"], json.loads(failure["input"])) == (6, "EngineAborted", ROWS[6])
    assert failure["message"].startswith("the process died of SIGABRT twice with this row in the model, the second time with no other")
    said = "the process died of SIGABRT again with row 6 alone in the model: it goes to errors/"
    warned = [message for message in handler.messages if said in message]
    assert [message.partition(": ")[2] for message in warned] == [said]  # by the driver, and not by its own worker again


@pytest.mark.slow
def test_a_row_that_kills_the_engine_in_deterministic_mode_ends_the_run(bench: Bench):
    with pytest.raises(Exception, match="twice with the same 8 rows in the model") as caught:
        over_a_worker(bench, [sys.executable, ABORTING, "6", str(bench.root / "deaths")], batch={**BATCH, "deterministic": True})
    assert type(caught.value).__name__ == "ModelError"
