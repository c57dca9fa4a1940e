"""Is the engine's process of a worker, with a model that aborts it when it gets a certain row.

``python aborting_engine.py ROW DEATHS SOCKET``: a file at DEATHS counts how often.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

killer, deaths, descriptor = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

lease_session: Any = import_module("mlx_bulk.runner.worker.lease_session")
engine: Any = import_module("mlx_bulk.runner.engine.engine")
run, prefill = lease_session.LeaseSession.run, engine.prefill_by_calls
loaded = [False]  # before, the engine is tried on rows that are not the job's


def begun(self: Any) -> None:
    loaded[0] = True
    run(self)


def prefilled(setup: Any, requests: Any, *bases: Any) -> Any:
    if loaded[0] and killer in {request.row for request in requests}:
        deaths.write_text((deaths.read_text() if deaths.exists() else "") + "x")
        os.abort()
    return prefill(setup, requests, *bases)


lease_session.LeaseSession.run, engine.prefill_by_calls = begun, prefilled
sys.argv = ["mlx-bulk", "worker-engine", descriptor]
import_module("mlx_bulk.jobs.cli.main").main()
