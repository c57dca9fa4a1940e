"""Tests what a run says of quantized keys and values: the measured difference, and that no measurement costs finished work."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.report.run_page import run_page
from mlx_bulk.runner.rescore import kv_difference
from mlx_bulk.runner.rescore.second_scores import SecondScores

from ..jobs.support.bench import Bench, Done
from ..jobs.support.finished_runs import column
from ..jobs.support.rollout_runs import roll
from ..jobs.support.run_states import shown

QUANTIZED = {"kv_bits": 8, "kv_group": 32}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs the demo model, whose heads divide into groups."""
    return Bench(tmp_path, Path("demo"))


def measured(done: Done) -> dict[str, Any]:
    return json.loads((done.output / "kv_difference.json").read_text())


def statistics(done: Done) -> dict[str, Any]:
    return json.loads((done.output / "summary.json").read_text())["statistics"]


def shift(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Makes the second scores of all tokens ``by`` larger, with another greedy choice for the first token of each completion."""
    honest = kv_difference.rescored

    def shifted(*args: Any):
        for each in honest(*args):
            greedy = np.arange(len(each.greedy)) > 0
            yield SecondScores(each.record, each.record.figures["logprobs"] + np.float32(by), each.tempered, greedy)

    monkeypatch.setattr(kv_difference, "rescored", shifted)


@pytest.mark.slow
def test_a_run_says_by_how_much_quantized_keys_and_values_moved_its_logprobs(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    shift(monkeypatch, 0.25)
    done = bench.run(batch=QUANTIZED)
    found, tokens = measured(done), sum(column(done, "completion_tokens"))
    assert (found["bits"], found["completions"], found["tokens"], found["reason"]) == (8, 5, tokens, None)
    assert (found["greedy_tokens"], found["greedy_changed"]) == (tokens, 5)
    assert [found[name] for name in ("mean", "abs_mean", "largest")] == pytest.approx([0.25] * 3, abs=1e-6)  # float32's rounding
    assert found["std"] == pytest.approx(0, abs=1e-3)  # the root of float64's rounding of squares
    assert statistics(done)["kv_abs_mean"] == found["abs_mean"]
    words = f"logprobs differ by 2.5e-01 on average, 2.5e-01 at most, over {tokens:,} tokens scored again in full precision."
    closing = CliRunner().invoke(cli, ["status", str(done.output)]).stdout
    assert "tokens of 5 completions, scored again in full precision, differ by mean |Δ| 2.5e-01" in closing
    assert f"; there {5 / tokens:.1%} of the greedy choices are others" in closing
    assert f"Keys and values were kept in 8 bits: {words}" in run_page(done.output).banner


@pytest.mark.slow
def test_fewer_bits_move_them_further(bench: Bench):
    eight = measured(bench.run(batch=QUANTIZED))
    four = measured(bench.run("--overwrite", batch=QUANTIZED | {"kv_bits": 4}))
    assert 1e-5 < eight["abs_mean"] < four["abs_mean"] / 2  # 1e-5: ten times float32's own


def test_a_run_in_full_precision_measures_nothing(bench: Bench):
    done = bench.run()
    assert not (done.output / "kv_difference.json").exists()
    assert not any(name.startswith("kv_") for name in statistics(done))


def test_a_plan_counts_tokens_in_few_bits(bench: Bench):
    def bytes_a_token(bits: int) -> int:
        config = bench.write_config(batch=QUANTIZED | {"kv_bits": bits})
        text = CliRunner().invoke(cli, ["plan", str(config)], env={"COLUMNS": "300"}).stdout
        found = re.search(rf"([\d,]+) bytes a cached token, with keys and values in {bits} bits", text)
        assert found is not None, text
        return int(found[1].replace(",", ""))

    assert bytes_a_token(4) / bytes_a_token(8) == pytest.approx((4 + 2) / (8 + 2))  # a scale and a bias of 32 bits for 32 numbers


def test_a_plan_names_the_tokens_that_stay_whole(bench: Bench):
    config = bench.write_config(batch=QUANTIZED | {"kv_start": 1500})
    text = CliRunner().invoke(cli, ["plan", str(config)], env={"COLUMNS": "300"}).stdout
    assert "bytes a cached token, after the first 1,500 of each row, with keys and values in 8 bits" in text


@pytest.mark.slow
def test_the_sample_depends_on_rows_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv_difference, "COMPLETIONS", 2)
    keys: list[set[tuple[int, ...]]] = []
    honest = kv_difference.rescored

    def noted(setup: Any, records: list[Any], *rest: Any):
        keys.append({(record.row, record.sample) for record in records})
        return honest(setup, records, *rest)

    monkeypatch.setattr(kv_difference, "rescored", noted)
    for more in ({}, {"rows_per_shard": 2}, {"rows": 1}):
        assert measured(bench.run("--overwrite", batch=QUANTIZED | more))["completions"] == 2
    assert keys[0] == keys[1] == keys[2]


def test_a_measurement_that_fails_leaves_the_run_complete_and_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any):
        raise RuntimeError("no memory for that")

    monkeypatch.setattr(kv_difference, "rescored", broken)
    done = bench.run(batch=QUANTIZED)
    assert (done.code, len(done.table)) == (0, 5)
    assert measured(done)["reason"] == "no memory for that"
    assert statistics(done)["kv_reason"] == "no memory for that"
    reason = "what that changed was not measured (no memory for that)."
    assert f"Keys and values were kept in 8 bits: {reason}" in run_page(done.output).banner


def test_a_process_that_dies_in_the_measurement_is_not_asked_to_measure_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: Any):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kv_difference, "rescored", killed)
        bench.run(batch=QUANTIZED)
    done = bench.run(batch=QUANTIZED)
    assert (done.code, len(done.table)) == (0, 5)
    assert statistics(done)["kv_reason"] == "the process ended while it was measured"


def test_records_without_logprobs_cannot_be_compared(bench: Bench):
    done = bench.run(batch=QUANTIZED, logprobs={"tokens": False})
    assert "logprobs.tokens is false" in measured(done)["reason"]


@pytest.mark.slow
def test_other_bits_are_another_run(bench: Bench):
    bench.run(batch=QUANTIZED)
    done = bench.run(batch={"kv_bits": 4, "kv_group": 32})
    assert done.code == 4
    assert "batch.kv_bits: the run has 8, the config now says 4" in done.stderr


@pytest.mark.slow
def test_overwrite_removes_what_an_older_run_measured(bench: Bench):
    before = bench.run(batch=QUANTIZED)
    assert (before.output / "kv_difference.json").exists()
    assert not (bench.run("--overwrite").output / "kv_difference.json").exists()


@pytest.mark.slow
def test_rollouts_are_measured_under_their_own_policies_and_the_closing_says_it(bench: Bench):
    done = roll(bench, batch=QUANTIZED)
    found = measured(done)
    assert (found["reason"], found["completions"]) == (None, min(32, len(done.table)))
    assert found["greedy_changed"] is None  # samples do not say what was most likely
    assert "keys and values in 8 bits: the logprobs of" in done.stderr
    assert "keys and values in 8 bits: the logprobs of" in shown(done.output)
