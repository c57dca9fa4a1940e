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
    program, networks = import_module("decode_overlap"), import_module("networks.idle_network")
    setup = networks.idle_setup(True)
    assert len(setup.model.layers) == 36
    found = program.host(setup, 8, ARGS)
    assert found.keys() == {"step_ms", "host_ms", "between_ms", "disturbed"}
    assert found["host_ms"] > 0
    assert 0 <= found["between_ms"] < found["step_ms"]  # the thread that it looks at computes


def test_the_engine_is_tried_ahead_and_step_by_step():
    program, networks = import_module("decode_overlap"), import_module("networks.idle_network")
    ways = program.ways(networks.idle_setup(True))
    assert {name: setup.ahead for name, setup in ways.items()} == {"ahead": True, "step by step": False}


def test_a_device_sleeps_when_it_neither_computes_nor_waits_for_a_processor(monkeypatch: pytest.MonkeyPatch):
    thread = import_module("racing.stream_thread")
    clock = thread.StepClock()
    host, device = clock._threads
    with monkeypatch.context() as patched:
        for wall, computed, waited in (10.0, (1.0, 2.0), (0.5, 0.25)), (18.0, (3.0, 6.0), (0.5, 2.25)):
            patched.setattr(thread.time, "perf_counter", lambda wall=wall: wall)
            patched.setattr(thread, "_computed", dict(zip((host, device), computed, strict=True)).__getitem__)
            patched.setattr(thread, "_waited", dict(zip((host, device), waited, strict=True)).__getitem__)
            for _ in range(thread.STEPS):
                clock()
    assert clock.pieces(0) == [thread.Piece(step=1.0, host=0.25, asleep=0.25, disturbed=0.25)]  # of 8 s: 4 computing, 2 waiting


@pytest.mark.slow
def test_the_program_ends_with_its_figures(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "decode_overlap.py"), "--size", "tiny", "--steps", "32", "--rounds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    ways = [value for key, value in said.items() if isinstance(value, dict) and key != "versions"]
    assert all({"overlap", "host_ms", "between_ms"} <= way.keys() for way in ways)
    assert ways
    assert [(bar["name"], bar["most"]) for bar in said["bars"]] == [("overlap", 1.05), ("host_ms", 3.0), ("between_ms", 0.3)]
    assert [line.split(":")[0] for line in done.stdout.splitlines()[-4:-1]] == ["bar"] * 3


def test_a_bar_says_whether_it_is_met_and_whether_the_machine_was_quiet():
    bar = import_module("racing.bars").Bar
    assert str(bar("overlap", 1.02, 1.05, 0.01)) == "bar: overlap: at most 1.05, found 1.02: met"
    busy = "bar: host_ms: at most 3, found 3.5: NOT MET; other work took 40% of the time, so measure again on an idle machine"
    assert str(bar("host_ms", 3.5, 3.0, 0.4)) == busy
    assert bar("gap", float("nan"), 2.0).met is False
