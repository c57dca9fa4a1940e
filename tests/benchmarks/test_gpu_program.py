"""Tests gpu.py as a program on the CPU: all its stages at a tiny size, a second start, and a stop under way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _on_the_generic_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_BULK_CPU", "generic")


@pytest.mark.slow
def test_a_program_that_is_stopped_leaves_no_process_behind(tmp_path: Path):
    """The stage's process says who it is and then computes for long."""
    program = (
        "import os, sys; sys.argv = ['gpu.py', '--results', 'gpu.json']; import gpu; from gpu_work import stage_process;"
        "from pathlib import Path; stage_process.PROGRAM = Path('hangs.py'); gpu.main()"
    )
    (tmp_path / "hangs.py").write_text("import os, sys, time; print('pid', os.getpid(), file=sys.stderr, flush=True); time.sleep(600)")
    env = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    held = next(int(line.split()[1]) for line in process.stderr if line.startswith("pid "))
    process.terminate()
    assert "stopped by SIGTERM" in process.communicate(timeout=60)[1]
    with pytest.raises(ProcessLookupError):
        os.kill(held, 0)


@pytest.mark.slow
def test_the_program_runs_every_stage_and_goes_on_where_it_ended(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--results", str(tmp_path / "gpu.json")]
    first = subprocess.run([*command, "--only", "score"], capture_output=True, text=True, check=False, timeout=300)
    assert first.returncode == 0, first.stderr
    assert list(json.loads((tmp_path / "gpu.json").read_text())["stages"]) == ["tiny bfloat16: score"]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert second.returncode == 0, second.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert {stage["kind"] for stage in results["stages"].values()} == {"generate", "score", "samples", "prefix", "kv"}
    assert all(stage["peers"]["ours"]["tokens_per_second"] > 0 for stage in results["stages"].values())
    assert {"device", "limits", "commit", "versions", "date"} <= results.keys()
    assert "tiny bfloat16: score: " not in second.stdout
    assert "| tiny-moe 4 bits | 2 rows, greedy, 6 tokens | ours |" in second.stdout
    third = subprocess.run([*command, "--minutes", "0", "--only", "moe"], capture_output=True, text=True, check=False, timeout=300)
    assert "tiny-moe 4 bits: generate 2 rows: no time left" in third.stdout


@pytest.mark.slow
@pytest.mark.oracle
def test_transformers_stands_beside_ours_in_a_process_of_its_own(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--results", str(tmp_path / "gpu.json"), "--peers", "transformers"]
    only = [f"{kind} (transformers)" for kind in ("score", "samples", "prefix")]
    done = subprocess.run([*command, "--only", *only], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"].values()
    assert [stage["kind"] for stage in stages] == ["score", "samples", "prefix"]
    for stage in stages:
        assert stage["peers"]["transformers"]["tokens_per_second"] > 0
        assert "transformers" in stage["agreement"]
