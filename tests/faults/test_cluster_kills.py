"""A run over workers whose processes are killed, and whose connections are cut, at random: each row once, the bytes of a plain run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "cluster_faults.py"
KILLS = 6


def test_kills_and_cuts_cost_no_row():
    options = ["--kills", str(KILLS), "--workers", "2", "--rows", "700", "--every", "1", "--seed", "3", "--deterministic"]
    done = subprocess.run([sys.executable, str(PROGRAM), *options], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["kills"] == KILLS
    assert figures["wrong"] == []


def test_rollouts_under_a_live_policy_stay_whole():
    """Each group is there once and whole, each shard has one policy, and each policy of a record is kept."""
    options = ["--rollouts", "--kills", str(KILLS), "--workers", "3", "--rows", "300", "--every", "1", "--seed", "5"]
    done = subprocess.run([sys.executable, str(PROGRAM), *options], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["kills"] == KILLS
    assert figures["policies"] > 2
    assert figures["wrong"] == []
