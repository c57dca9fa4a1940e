"""Tests of gpu.py on the CPU: every kind of stage at a tiny size, what it finds and what it says when something fails."""

import json
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SLOW_DEVICE = {"bandwidth": 1e9, "flops": 1e9, "flops_4bit": 1e9, "round_trip": 1e-5}


@pytest.fixture(autouse=True)
def _on_the_generic_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_BULK_CPU", "generic")
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def module(name: str) -> Any:
    return import_module(name)


def performed(kind: str, rows: int = 0, **sizes: Any) -> dict[str, Any]:
    """What a stage on the tiny model tells, put together as the program does."""
    stages, models, worker = module("gpu_work.gpu_stages"), module("networks.random_models"), module("gpu_work.stage_performance")
    stage, told = stages.Stage(models.Variant("tiny"), kind, rows), dict[str, Any]()
    own = replace(stages.TINY, **sizes)
    limits = module("gpu_work.device_limits").DeviceLimits(1e12, 1e12, 1e12, 1e-5)
    worker.Performance(stage, models.build(stage.variant), own, limits, time.perf_counter(), told.update).run(stage.work(own))
    return json.loads(json.dumps(told))


def test_generation_is_timed_beside_mlx_lm_and_beside_the_devices_limits():
    told = performed("generate", 3)
    ours, theirs = told["peers"]["ours"], told["peers"]["mlx_lm"]
    assert list(told["peers"]) == ["ours", "mlx_lm", "ours_step_by_step"]
    assert told["tokens"] == 18
    for peer in (ours, theirs):
        assert peer["tokens_per_second"] == pytest.approx(18 / peer["seconds"][0], rel=0.01)
        assert peer["peak_gb"] >= 0
        assert 0 <= peer.get("waited", 0) <= 1
    assert ours["queued_step_ms"].keys() == {"device", "build"}
    assert ours["floor_ms"].keys() == {"read", "multiply"}
    agreed = told["agreement"]
    assert agreed["ours"].keys() == {"gap", "rms", "largest", "equal"}
    assert agreed["mlx_lm"].keys() == {"gap", "equal"}
    assert 0 < agreed["noise"]["rms"] < 0.2  # bfloat16's, in a model of two layers
    assert agreed["ours"]["rms"] <= agreed["bounds"]["row"]


@pytest.mark.slow
def test_scored_texts_are_compared_token_by_token():
    told = performed("score")
    assert told["tokens"] > 100
    assert all(told["agreement"][peer]["rms"] <= told["agreement"]["bounds"]["row"] for peer in ("ours", "mlx_lm"))
    assert "padded_tokens" in told["peers"]["mlx_lm"]


@pytest.mark.slow
def test_samples_share_a_prefill_and_the_peers_prompt_comes_as_often():
    told = performed("samples")
    assert (told["prompts"], told["rows"], told["tokens"]) == (2, 6, 36)
    assert told["agreement"].keys() == {"noise", "bounds", "ours", "mlx_lm"}


@pytest.mark.slow
def test_a_common_prefix_is_shared_and_two_ways_of_the_peer_stand_beside_it():
    assert list(performed("prefix")["peers"]) == ["ours", "mlx_lm", "mlx_lm_cached"]


@pytest.mark.slow
def test_quantized_keys_and_values_stand_beside_plain_ones():
    told, lossy = performed("kv"), ["ours_8bit", "ours_4bit"]
    assert list(told["peers"]) == ["ours", "mlx_lm", *lossy]
    for peer in lossy:
        assert told["agreement"][peer]["rms"] < 1
        assert told["peers"][peer]["queued_step_ms"]["device"] > 0
        assert "error" not in told["peers"][peer]


def test_a_shortage_of_memory_is_one_peers_line(monkeypatch: pytest.MonkeyPatch):
    def full(*given: Any) -> Any:
        raise RuntimeError("[malloc] Unable to allocate 123 bytes.")

    monkeypatch.setattr(module("gpu_work.gpu_peers"), "peer_completions", full)
    told = performed("generate", 2)
    assert told["peers"]["mlx_lm"] == {"error": "out of memory: [malloc] Unable to allocate 123 bytes."}
    assert told["peers"]["ours"]["tokens_per_second"] > 0
    assert not module("gpu").failed(told)


def test_wrong_logprobs_of_ours_fail_loudly(monkeypatch: pytest.MonkeyPatch):
    ours = module("peers.ours")
    right = ours.found

    def wrong(outcomes: Any) -> Any:
        found = right(outcomes)
        found["logprobs"][0] = [one - 0.5 for one in found["logprobs"][0]]
        return found

    monkeypatch.setattr(ours, "found", wrong)
    told = performed("generate", 2)
    assert "ours: a row's logprobs are off by" in told["disagreement"]
    assert "bfloat16 explains row" in told["disagreement"]
    assert module("gpu").failed(told)


def test_float32_is_the_network_in_float32_without_cache_or_batch():
    models, check = module("networks.random_models"), module("gpu_work.float32_check")
    network, mx = models.build(models.Variant("tiny-moe")).network, models.mx
    ids = np.random.default_rng(0).integers(0, 512, 30).tolist()
    found = np.array(check.in_float32(network, ids))
    assert network.lm_head.weight.dtype == mx.bfloat16  # it is as it was
    network.set_dtype(mx.float32)
    np.testing.assert_allclose(found, np.array(network(mx.array([ids]))), atol=1e-5)  # float32, summed in the same order


def test_a_greedy_token_that_is_not_the_likeliest_is_found():
    models, check = module("networks.random_models"), module("gpu_work.float32_check")
    network, mx = models.build(models.Variant("tiny")).network, models.mx
    prompt = list(range(3, 20))
    best = int(mx.argmax(network(mx.array([prompt]))[0, -1]))
    fine = check.checked({"peer": [check.Row([*prompt, best], len(prompt))]}, network, True)
    assert fine["peer"]["gap"] <= fine["bounds"]["gap"]
    with pytest.raises(module("racing.agreement").DisagreementError, match="peer: a greedy token is less likely than another"):
        check.checked({"peer": [check.Row([*prompt, best, 7], len(prompt))]}, network, True)


def test_works_shrink_to_what_a_device_can_do():
    stages, models, limits = module("gpu_work.gpu_stages"), module("networks.random_models"), module("gpu_work.device_limits").DeviceLimits
    slow, tiny = limits(**SLOW_DEVICE), models.Variant("tiny")
    plain = stages.Stage(tiny, "generate", 64).work(stages.Sizes())
    assert stages.fitted(plain, limits(1e15, 1e15, 1e15, 0), tiny, 32) == plain
    fewer = stages.fitted(plain, limits(1e9, 1.3e9, 1e9, 0), tiny, 32)
    assert (fewer.completing.new, len(fewer.completing.prompts)) == (64, 64)
    assert stages.fitted(stages.Stage(models.Variant("8b"), "generate", 64).work(stages.Sizes()), slow, models.Variant("8b"), 32) is None
    texts = stages.fitted(stages.Stage(tiny, "score").work(stages.Sizes()), limits(1e9, 8e9, 8e9, 0), tiny, 32)
    assert 64 <= len(texts.completing.prompts) < 1024


def test_a_model_that_does_not_fit_is_skipped_before_it_is_built(monkeypatch: pytest.MonkeyPatch):
    worker, stages, models = module("gpu_work.stage_performance"), module("gpu_work.gpu_stages"), module("networks.random_models")
    fast = module("gpu_work.device_limits").DeviceLimits(1e15, 1e15, 1e15, 0)

    def planned(memory: int, kind: str, rows: int = 0) -> Any:
        monkeypatch.setattr(worker.backend, "memory_bytes", lambda: memory)
        return worker.planned(stages.Stage(models.Variant("8b"), kind, rows), stages.Sizes(), fast)

    assert planned(10_000_000_000, "score").startswith("0.8 of the device's 10.0 GB does not hold weights of 16.4 GB and a workspace of ")
    assert planned(80_000_000_000, "generate", 256).completing.rows == 256
    caches = planned(30_000_000_000, "kv")
    assert caches.startswith("KV caches take ")
    assert " GB, and weights and workspace leave " in caches


@pytest.mark.slow
def test_what_is_planned_decodes_all_its_rows_at_once(monkeypatch: pytest.MonkeyPatch):
    """The engine holds back the same share of memory, and the same workspace: with the least memory that is enough, no row waits."""
    worker, stages, models = module("gpu_work.stage_performance"), module("gpu_work.gpu_stages"), module("networks.random_models")
    fast, tiny = module("gpu_work.device_limits").DeviceLimits(1e15, 1e15, 1e15, 0), models.Variant("tiny")
    stage, built = stages.Stage(tiny, "kv"), models.build(tiny)
    refused, work = 0, "nothing was planned"
    for memory in range(5_000_000, 4_000_000_000, 5_000_000):
        monkeypatch.setattr(worker.backend, "memory_bytes", lambda memory=memory: memory)
        work = worker.planned(stage, stages.Sizes(), fast)
        if not isinstance(work, str):
            break
        refused += 1
    else:
        pytest.fail(work)
    limits = module("gpu_work.gpu_peers").our_setup(built, work).limits
    assert refused
    assert 0.9 * limits.kv_bytes < limits.kv(limits.rows, work.longest) <= limits.kv_bytes


def test_the_most_important_stages_come_first():
    stages = module("gpu_work.gpu_stages")
    names = [stage.name for stage in stages.stages("cuda", 80 << 30, stages.Sizes(), ("vllm",))]
    assert names[:3] == ["0.6b bfloat16: generate 256 rows", "0.6b bfloat16: score", "0.6b bfloat16: generate 64 rows"]
    assert len(set(names)) == len(names)
    assert "30b-a3b 4 bits: generate 256 rows" in names
    assert "0.6b bfloat16: generate 256 rows (vllm)" in names
    assert names.index("0.6b bfloat16: score (vllm)") < names.index("4b 4 bits: prefix") < names.index("0.6b bfloat16: prefix (vllm)")
    few = [stage.name for stage in stages.stages("metal", 16 << 30, stages.Sizes(), ())]
    assert "30b-a3b (12 layers) 4 bits: score" in few


# ------------------------------------------------------------------------------------- the process, and the program

ANSWERS = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"first": 1}), flush=True)
    if asked.get("die"):
        sys.exit(3)
    if asked.get("hang"):
        time.sleep(60)
    print(json.dumps({"second": asked["n"], "done": True}), flush=True)
"""


def test_a_stage_that_dies_or_hangs_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = module("gpu_work.stage_process")
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.setattr(program, "PROGRAM", tmp_path / "answers.py")
    with program.StageProcess("tiny") as process:
        assert process.ask({"n": 1}, 60) == {"first": 1, "second": 1}
        assert process.ask({"die": True}, 60) == {"first": 1, "error": "the process ended with 3; what it said stands above"}
        assert process.ask({"hang": True}, 0.5)["error"] == "stopped after 0 s"
        assert process.ask({"n": 2}, 60) == {"first": 1, "second": 2}


def test_the_table_says_what_was_found_and_what_failed():
    ours = {
        "tokens_per_second": 2000.0,
        "again": 2400.0,
        "step_ms": 4.0,
        "queued_step_ms": {"device": 3.0},
        "waited": 0.25,
        "peak_gb": 5.02,
    }
    ours["floor_ms"] = {"read": 2.0, "multiply": 1.0}
    peers = {"ours": ours, "mlx_lm": {"tokens_per_second": 1000.0, "again": 1500.0, "step_ms": 8.0}}
    peers["mlx_lm_cached"] = {"tokens_per_second": 4000.0, "step_ms": -1.5}  # noise, and no figure
    done = {"kind": "generate", "rows": 64, "new": 128, "prompts": 64, "peers": peers}
    agreement = {"noise": {"rms": 0.01}, "ours": {"rms": 0.012}}
    results = {
        "device": {"name": "A GPU", "kind": "cuda", "memory": 80e9},
        "machine": "a machine",
        "commit": "abc",
        "date": "2026-01-02",
        "versions": {"mlx": "1.2"},
        "limits": {"bandwidth_gb_s": 3000, "tflops_bfloat16": 700, "tflops_4bit": 300, "round_trip_us": 20},
        "stages": {
            "4b bfloat16: generate 64 rows": done | {"agreement": agreement},
            "8b bfloat16: score": {"skipped": "it is too large"},
            "4b bfloat16: kv": {**done, "kind": "kv", "disagreement": "ours: a logprob is off"},
        },
    }
    lines = module("gpu_table").markdown(results).splitlines()
    assert (
        lines[2]
        == "| 4b bfloat16 | 64 rows, greedy, 128 tokens | ours | 2,000 |  | 2,400 |  | 4.00 | 3.00 | 25% | 2.00 (read) | 5.0 | 0.012 |"
    )
    assert lines[3].startswith("|  |  | mlx_lm | 1,000 | 2.00× | 1,500 | 1.60× | 8.00 |")
    assert lines[4].startswith("|  |  | mlx_lm_cached | 4,000 | 0.50× |  |  |  |")
    assert lines[5].startswith("| 8b bfloat16 | score | not run: it is too large |")
    assert any(line.startswith("|  |  | **disagreement**: ours: a logprob is off |") for line in lines)
    assert "- Device: A GPU (cuda), 80 GB; machine: a machine." in lines
    assert "- Commit abc, 2026-01-02; mlx 1.2." in lines
    assert all(line.count("|") == lines[0].count("|") for line in lines if line.startswith("|"))


def test_the_first_line_names_the_device_or_says_that_there_is_none():
    found = module("gpu").found_device
    limits = {"bandwidth_gb_s": 3012.4, "tflops_bfloat16": 701.25}
    gpu = {"device": {"kind": "cuda", "name": "A GPU", "memory": 80e9}, "limits": limits}
    assert found(gpu) == "A GPU (cuda), 80 GB; measured: 3,012 GB/s, 701 TFLOP/s in bfloat16"
    assert found({"device": {"kind": "cpu"}, "limits": limits}).startswith("no GPU that mlx can use: tiny sizes on the CPU")
