"""What an agent that waits does not load."""

import subprocess
import sys

import pytest
from mlx_bulk.jobs.worker.light_imports import REPLACED, SPARED, light_imports

PROGRAM = """
import sys
from mlx_bulk.jobs.worker.light_imports import light_imports
with light_imports():
    import mlx_bulk.runner.network.dask_link
import mlx_bulk.jobs.worker.agent, mlx_bulk.jobs.worker.engine_process, mlx_bulk.jobs.worker.introduction
print(*sorted({name.partition(".")[0] for name in sys.modules} | {name for name in sys.modules if name.startswith("distributed.")}))
import numpy, jinja2
"""


@pytest.mark.slow
def test_an_agent_loads_no_mlx_no_arrow_and_nothing_of_what_is_spared():
    pytest.importorskip("distributed")
    loaded = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.split()
    assert "distributed" in loaded
    assert not {*SPARED, *REPLACED, "tornado.websocket", "mlx", "mlx_lm", "pyarrow", "transformers", "pandas"} & set(loaded)


def test_what_is_loaded_already_stays():
    sys.modules.setdefault("numpy", __import__("numpy"))
    with light_imports():
        assert sys.modules["numpy"] is __import__("numpy")
    assert "numpy" in sys.modules
