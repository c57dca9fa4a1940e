"""Tests the table of figures: it comes from the programs' JSON alone and stands between its markers."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ABOUT = {"date": "2026-01-02", "machine": "a machine", "blas": "a BLAS", "versions": {"mlx": "1.2"}}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = import_module("racing.result_table")
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    module.README.write_text("above\n<!-- latest -->\nold\n<!-- /latest -->\n<!-- avx2 -->\nold\n<!-- /avx2 -->\nbelow\n")
    return module


def test_every_figure_belongs_to_a_run_of_all(results: Any):
    assert {row.run for row in results.ROWS} <= import_module("racing.commands").COMMANDS.keys()


def test_the_table_is_rewritten_from_the_files(results: Any, tmp_path: Path):
    speed = {"tokens_per_second": 100.0}
    score = {"benchmark": "score_speed", "ratio": {"transformers": 2.345}, "ours": speed, "transformers": speed}
    (tmp_path / "score.json").write_text(json.dumps(score | {"sgemm_gflops": 400.0, "peak_share": 0.5678} | ABOUT))
    (tmp_path / "skew.json").write_text(
        "a table\n" + json.dumps({"benchmark": "skew", "count": 2048, "rows": 32, "padding": 1.01234, "filled": 0.9, **ABOUT})
    )
    results.rewrite(tmp_path)
    text = results.README.read_text()
    assert text.startswith("above\n<!-- latest -->\n| work |")
    assert text.endswith("<!-- /latest -->\n<!-- avx2 -->\nold\n<!-- /avx2 -->\nbelow\n")
    for line in (
        "| (c) scoring | transformers float32, sorted | 1.8×, aim 2.5× | 2.35× |",
        "| (c) | sgemm of the run, 400.0 GFLOP/s in the BLAS's units | 50 %, aim 60 % | 56.8% |",
        "| (c) | llama.cpp float32 | 1.1×, aim 1.4× | peer left out |",
        "| (f) skewed lengths, 2,048 rows | padded to real tokens in prefill | at most 1.05 | 1.012 |",
        "- Date: 2026-01-02.",
        "- Versions: mlx 1.2.",
        "- Programs, each with `--data` where lengths are taken from it: score `score_speed.py`; skew `skew.py`.",
    ):
        assert line in text.splitlines()
    assert "(e)" not in text
    assert "- Not run yet: 135m-greedy-32, " in text


def test_fastest_rounds_are_told_beside_the_medians(results: Any, tmp_path: Path):
    ours = {"tokens_per_second": 100.0, "tokens": 600, "seconds": [6.0, 5.0, 9.0]}
    peer = {"tokens_per_second": 50.0, "tokens": 600, "seconds": [12.0, 15.0, 9.0]}
    score = {"benchmark": "score_speed", "ratio": {"transformers": 2.0}, "ours": ours, "transformers": peer, "sgemm_gflops": 250.0}
    (tmp_path / "score.json").write_text(json.dumps(score | {"peak_share": 0.75} | ABOUT))
    results.rewrite(tmp_path)
    assert "- Of the fastest rounds, score: 1.80× to transformers; 90.0% of sgemm." in results.README.read_text().splitlines()


def test_a_folder_without_runs_leaves_the_table_as_it_is(results: Any, tmp_path: Path):
    before = results.README.read_text()
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="holds no JSON file of a run"):
        results.rewrite(tmp_path)
    assert results.README.read_text() == before


def test_a_tier_has_a_table_of_its_own(results: Any, tmp_path: Path):
    tiers, commands = import_module("racing.tiers"), import_module("racing.commands")
    speed = {"tokens_per_second": 100.0}
    score = {"benchmark": "score_speed", "ratio": {"transformers": 1.5, "llama_cpp": 1.41}, "ours": speed, "transformers": speed}
    (tmp_path / "score.json").write_text(json.dumps(score | {"llama_cpp": speed, "sgemm_gflops": 250.0, "peak_share": 0.9} | ABOUT))
    (tmp_path / "skew.json").write_text(json.dumps(ABOUT))
    results.rewrite(tmp_path, "avx2", tiers.rows("avx2"), commands.of_tier("avx2"))
    text = results.README.read_text()
    assert text.startswith("above\n<!-- latest -->\nold\n<!-- /latest -->\n<!-- avx2 -->\n| work |")
    assert "| (c) | llama.cpp float32 | 1.4× | 1.41× |" in text.splitlines()
    assert "| (c) | sgemm of the run, 250.0 GFLOP/s | 85 % | 90.0% |" in text.splitlines()
    assert "- Not run yet: 135m, 5m, answers." in text
    assert all({row.run for row in tiers.rows(tier)} == commands.of_tier(tier).keys() for tier in tiers.BARS)


def test_peers_are_held_to_the_tier(results: Any, monkeypatch: pytest.MonkeyPatch):
    tiers, turns = import_module("racing.tiers"), import_module("racing.turns")
    monkeypatch.delenv("MLX_BULK_CPU", raising=False)
    assert tiers.variables() == {}
    tiers.check_llama("AVX2 = 1 | AVX512 = 1")
    monkeypatch.setenv("MLX_BULK_CPU", "avx2")
    assert turns.environment()["OPENBLAS_CORETYPE"] == "Haswell"
    assert turns.environment()["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    tiers.check_llama("AVX2 = 1 | AVX512 = 0")
    with pytest.raises(SystemExit, match="is built with AVX-512"):
        tiers.check_llama("AVX2 = 1 | AVX512 = 1")


def test_the_least_agreement_is_stated(results: Any):
    def run(equal: float, difference: float) -> dict[str, Any]:
        held = {"equal": equal, "largest_difference": difference}
        half = {"equal": 0.1, "largest_difference": 0.5}
        agreement = {"transformers": held, "transformers_bfloat16": half, "llama_cpp_half": half}
        return {"benchmark": "generate_speed", "sampled": False, "agreement": agreement, "slow_prompts": 4, **ABOUT}

    *_, said, _ = results.lines({"135m-greedy-32": run(0.95, 2e-6), "5m-greedy-32": run(1.0, 4e-6)})
    assert "at least 95%" in said
    assert "within 4e-06" in said
