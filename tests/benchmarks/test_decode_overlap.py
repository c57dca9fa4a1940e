"""Tests of decode_overlap.py at a tiny size: what it times is the same work in each way, and its figures are there."""

import argparse
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ARGS = argparse.Namespace(steps=32, rounds=1, profile=False)


@pytest.fixture(autouse=True)
def _on_the_generic_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_BULK_CPU", "generic")
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_rows_with_top_logprobs_and_stop_strings_decode_on_layers_that_do_nothing():
    program, networks = import_module("decode_overlap"), import_module("idle_network")
    setup = networks.idle_setup(True)
    assert len(setup.model.layers) == 36
    found = program.host(setup, 8, ARGS)
    assert found.keys() == {"step_ms", "queued_ms", "host_ms", "between_ms"}
    assert found["queued_ms"] > 0


def test_an_engine_that_can_decode_ahead_is_tried_both_ways():
    program, networks = import_module("decode_overlap"), import_module("idle_network")
    setup: Any = networks.idle_setup(True)
    ways = program.ways(setup)
    assert list(ways) == (["ahead", "step by step"] if hasattr(setup, "ahead") else ["engine"])


@pytest.mark.slow
def test_the_program_ends_with_its_figures(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "decode_overlap.py"), "--size", "tiny", "--steps", "32", "--rounds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    ways = [value for key, value in said.items() if isinstance(value, dict) and key != "versions"]
    assert all({"overlap", "host_ms", "between_ms"} <= way.keys() for way in ways)
    assert ways
