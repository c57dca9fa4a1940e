"""Runs each benchmark at a tiny size. Each ends with a line of JSON that results.py can read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GENERATE = ["generate_speed.py", "--shape", "5m", "--prompts", "3", "--new", "3", "--rows", "2", "--rounds", "1", "--peers", "mlx_lm_fast"]
DEMO = str(BENCHMARKS.parent / "configs" / "demo")
UNBOUND = ["--told", "300", "--given", "300"]  # no test times a speed
PREFIX = ["prefix_speed.py", "--shape", "5m", "--count", "2", "--new", "3", "--rounds", "1", "--work"]


def last_line(command: list[str], folder: Path) -> dict[str, Any]:
    program, *options = command
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *options], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["load_cost.py", "plan_accuracy.py"])
def test_help_measures_nothing(program: str, tmp_path: Path):
    done = subprocess.run([sys.executable, str(BENCHMARKS / program), "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: {program}")


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--sampled"]])
def test_generation_is_raced_and_compared(options: list[str], tmp_path: Path):
    said = last_line([*GENERATE, *options], tmp_path)
    assert set(said["ratio"]) == {"mlx_lm_fast"}
    assert said["ours"]["tokens"] == said["mlx_lm_fast"]["tokens"] == 9
    assert said["agreement"]["mlx_lm_fast"].keys() == ({"mean_logprob", "ours"} if options else {"equal", "largest_difference"})


@pytest.mark.slow
def test_scoring_is_raced_and_set_against_matrix_products(tmp_path: Path):
    small = ["--shape", "5m", "--texts", "3", "--rounds", "1", "--sgemm-width", "512"]
    said = last_line(["score_speed.py", *small, "--peers", "sgemm"], tmp_path)
    assert said["sgemm_gflops"] > 0
    assert said["peak_share"] > 0


@pytest.mark.slow
def test_common_prefixes_are_computed_once_or_for_each_row(tmp_path: Path):
    said = last_line([*PREFIX, "answers", "--prefix", "200"], tmp_path)
    own = said["texts"]["tokens"]
    assert said["computed"]["apart"] == own + 2 * 200
    assert said["computed"]["shared"] == own + 200


@pytest.mark.slow
def test_samples_are_drawn_from_one_prefill_and_from_one_each(tmp_path: Path):
    said = last_line([*PREFIX, "samples", "--prefix", "12"], tmp_path)
    new = 2 * 16 * 3
    assert said["computed"] == {"shared": 2 * 11 + new, "apart": 2 * 16 * 11 + new}
    assert said["agreement"]["equal"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (["skew.py", "--count", "6", "--rows", "2"], {"padding", "filled", "filled_before_the_end"}),
        (["outside.py", "--shape", "5m", "--prompts", "3", "--new", "3", "--rounds", "1"], {"outside", "start_seconds"}),
        (["cluster_slow_worker.py", "--seconds", "1"], {"over_ideal", "begun_again_share"}),
        (
            ["cluster_speed.py", "--rows", "600", "--tokens", "8", "--model", DEMO],
            {"two_beside_one", "two_beside_one_engine_cores", "cpu_ms_a_row"},
        ),
        (["cluster_scale.py", "--workers", "2", "--leases", "2", "--seconds", "1"], {"cpu_ms_a_lease", "core_share", "peak_mb", "growth"}),
        (["cluster_times.py", "--kills", "1", "--workers", "2", *UNBOUND], {"seconds", "wrong", "bounds"}),
        (["cluster_idle.py", "--seconds", "2"], {"mb", "own_mb", "core_share"}),
        # No test times a speed. The other differences: tests/commands/test_cluster_door.py.
        (["cluster_door.py", "--bound", "300", "--only", "another tokenizer"], {"seconds", "said", "wrong", "bound"}),
        (["million.py", "--rows", "40", "--few", "20"], {"memory", "rows_per_second"}),
        (["million.py", "--job", "score", "--rows", "40", "--few", "20"], {"memory", "rows_per_second"}),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_the_others_end_with_their_figures(command: list[str], keys: set[str], tmp_path: Path):
    said = last_line(command, tmp_path)
    assert keys <= said.keys()
    assert {"date", "versions", "machine", "blas"} <= said.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "keys"),
    [("durability.py", {"ratio", "writer_cpu_share", "seconds"}), ("determinism.py", {"differ", "largest_difference", "slowdown", "rows"})],
)
def test_those_of_the_demo_model_end_with_their_figures(program: str, keys: set[str], tmp_path: Path):
    assert last_line([program, "--rows", "6", "--tokens", "3", "--rounds", "1"], tmp_path).keys() == keys


@pytest.mark.slow
def test_recovery_of_a_large_run_is_timed_in_a_process_of_its_own(tmp_path: Path):
    said = last_line(["resume.py", "--rows", "2500"], tmp_path)
    assert said.keys() == {"rows", "shards", "recover_seconds", "recover_bytes", "write_seconds"}
    assert said["shards"] == 3


@pytest.mark.slow
@pytest.mark.oracle
def test_an_architecture_is_raced_with_transformers(tmp_path: Path):
    said = last_line(["architectures.py", "--names", "phi3", "--prompts", "2", "--new", "2", "--rounds", "1"], tmp_path)
    assert said["runs"].keys() == {"phi3 generate", "phi3 score"}
    assert all(run["ratio"] > 0 for run in said["runs"].values())


@pytest.mark.slow
def test_waits_beside_a_prefill_are_measured_on_both_paths(tmp_path: Path):
    command = ["stalls.py", "--shape", "toy", "--length", "150", "--prefill-tokens", "32", "--count", "3", "--new", "4", "--rounds", "1"]
    said = last_line(command, tmp_path)
    for path in ("cpu", "generic"):
        assert said[path].keys() == {"drained", "auto (2048)", "32"}
        assert all({"gap", "gap_ms", "chunk_ms", "slower"} <= each.keys() for each in said[path].values())
        assert said[path]["32"]["steps"] >= said[path]["drained"]["steps"]
    assert {bar["name"] for bar in said["bars"]} == {
        f"{path}, largest {gap} in chunks" for path in ("cpu", "generic") for gap in ("gap", "busy_gap")
    }


@pytest.mark.slow
def test_quantized_weights_are_raced_against_float32(tmp_path: Path):
    small = ["--shape", "5m", "--bits", "4", "--prompts", "2", "--new", "2", "--rounds", "1"]
    said = last_line(["quantized_speed.py", *small], tmp_path)
    assert {name: run["ratio"]["float32"] > 0 for name, run in said["runs"].items()} == {"4 bits generate": True, "4 bits score": True}
    assert said["products"]["4 bits, 32 rows"].keys() == {"packed", "float32", "mlx"}


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("shape", ["qwen2_5_vl", "smolvlm"])
def test_rows_with_pictures_are_raced(shape: str, tmp_path: Path):
    said = last_line(["vision_speed.py", "--shape", shape, "--rows", "4", "--pictures", "2", "--new", "4", "--rounds", "1"], tmp_path)
    assert set(said["ratio"]) == {"mlx_vlm"}
    assert said["equal_rows"] == {"mlx_vlm": 4}
