"""The driver of a run over workers is killed and started again: workers go on with the models that they have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "cluster_restart.py"


def test_a_killed_driver_costs_no_load_of_a_model():
    options = ["--kills", "2", "--workers", "2", "--rows", "1500"]
    done = subprocess.run([sys.executable, str(PROGRAM), *options], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads(done.stdout.splitlines()[-1])
    assert (figures["loads"], figures["wrong"], len(figures["first_commits"])) == (0, [], 2)
