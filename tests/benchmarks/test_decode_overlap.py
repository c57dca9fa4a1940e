"""Tests of decode_overlap.py at a tiny size: what it times is the same work in each way, and its figures are there."""

import argparse
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCHEDULER = Path("/proc/self/schedstat")
pytestmark = pytest.mark.skipif(not SCHEDULER.exists(), reason="Linux alone tells how long a thread slept")
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
    assert found.keys() == {"step_ms", "host_ms", "between_ms", "disturbed"}
    assert found["host_ms"] > 0
    assert 0 <= found["between_ms"] < found["step_ms"]


def test_the_engine_is_tried_ahead_and_step_by_step():
    program, networks = import_module("decode_overlap"), import_module("idle_network")
    ways = program.ways(networks.idle_setup(True))
    assert {name: setup.ahead for name, setup in ways.items()} == {"ahead": True, "step by step": False}


def test_a_device_that_the_host_lets_wait_is_seen_to_sleep():
    thread, mx = import_module("stream_thread"), import_module("shapes").mx
    few, many = mx.zeros((4, 4)), mx.ones((400, 400))
    mx.eval(many @ many)
    seen = []
    for waits in (False, True):
        clock = thread.StepClock()
        for _ in range(1 + 2 * thread.STEPS):
            clock()
            if waits:  # the host works, the device has nothing to do
                mx.eval(few + 1)
                sum(range(100_000))
            else:  # the device works, the host waits
                mx.eval(many @ many @ many @ many)
        seen.append(clock.pieces(0))
    (busy, *_), (idle, *_) = seen
    assert idle.asleep > idle.host / 2
    assert busy.step - busy.asleep > busy.host


@pytest.mark.slow
def test_the_program_ends_with_its_figures(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "decode_overlap.py"), "--size", "tiny", "--steps", "32", "--rounds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    ways = [value for key, value in said.items() if isinstance(value, dict) and key != "versions"]
    assert all({"overlap", "host_ms", "between_ms"} <= way.keys() for way in ways)
    assert ways
