"""Tests the agent as a process: what it loads, and what its death does to its engine."""

import os
import subprocess
import sys
from pathlib import Path

PATIENCE = 60.0  # seconds after which a test that waits has failed
SPINNING = """
import sys, threading
from mlx_bulk.jobs.worker.engine_host import host_engine
def serve(connection, process):
    print("up", flush=True)
    threading.Event().wait()
host_engine(int(sys.argv[1]), serve)
"""
AGENT = """
import sys
from queue import SimpleQueue
from mlx_bulk.jobs.supervision.crash_suspects import Suspects
from mlx_bulk.jobs.worker.driver_line import DriverSaid
from mlx_bulk.jobs.worker.engine_process import EngineProcess
EngineProcess([sys.executable, "-c", sys.argv[1]], Suspects(), SimpleQueue())
sys.stdin.read()
"""


def test_an_engine_ends_with_an_agent_that_is_killed_and_leaves_nothing(tmp_path: Path):
    command, environment = [sys.executable, "-c", AGENT, SPINNING], {**os.environ, "TMPDIR": str(tmp_path)}
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "up\n"
    agent.kill()
    assert agent.communicate(timeout=PATIENCE)[0] == ""  # until the engine has let go of the pipe as well
    assert not any(tmp_path.iterdir())


def test_the_agent_loads_no_engine():
    code = "import sys, mlx_bulk.jobs.worker.agent, mlx_bulk.jobs.cli.main; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mlx.core", "mlx_lm", "transformers", "datasets", "pyarrow", "pandas"} & set(loaded)
