"""Tests reports of sweeps, comparisons and rollouts: tables, charts, and notes on missing figures."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.report.sweep_page import bits_of
from mlx_bulk.jobs.report_data.speed_series import intervals
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.runs.history import history
from mlx_bulk.runner.store.paths import RunPaths

from ..jobs.report.test_report import Reader, reported
from ..jobs.support.bench import ROWS, Bench


def labels(page: Reader) -> list[str]:
    """Returns the labels of the drawn marks."""
    return [str(attributes["aria-label"]) for tag, attributes in page.elements if tag == "path" and attributes.get("aria-label")]


@pytest.mark.slow
@pytest.mark.draws
def test_a_sweep(bench: Bench):
    config: dict[str, Any] = {
        "job": "sweep",
        "base": {
            "job": "score",
            "model": {"path": str(bench.model)},
            "data": {"path": str(bench.write_rows(ROWS))},
            "score": {"text": "{{ q }}"},
        },
        "matrix": {"score.context": [8, 16], "score.prefix": ["bos", "none"]},
        "output": {"path": str(bench.root / "sweep")},
    }
    (bench.root / "sweep.yaml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(cli, ["run", str(bench.root / "sweep.yaml"), "--no-supervised"])
    assert result.exit_code == 0, result.output
    assert f"report: {bench.root}/sweep/report.html" in result.stderr
    page = Reader((bench.root / "sweep/report.html").read_text())
    shades = [attributes["style"] for tag, attributes in page.elements if tag == "td" and "data-shade" in attributes]
    assert {"--shade: 0.000", "--shade: 1.000"} <= set(shades)
    assert "perplexity against score.context" in page.text
    assert len([label for label in labels(page) if label.startswith("score.context ")]) == 4
    assert reported(bench.root / "sweep", "--to", str(bench.root / "again.html")).text.split("Drawn")[0] == page.text.split("Drawn")[0]
    (bench.root / "sweep/sweep.arrow").write_bytes(b"")
    refused = CliRunner().invoke(cli, ["report", str(bench.root / "sweep")])
    assert refused.exit_code == 5
    assert "Run the sweep's command again" in refused.stderr


@pytest.mark.parametrize(
    ("name", "config", "bits"),
    [
        ("a-4bit", None, 4),
        ("mlx-community/Qwen3-4B-8bit", None, 8),
        ("Llama-3.2-1B-bf16", None, 16),
        ("Qwen2.5-14B", None, None),
        ("here", {"quantization": {"bits": 3, "group_size": 64}}, 3),
        ("plain-4bit", {"torch_dtype": "float32"}, 32),
        ("demo", None, 16),
    ],
)
def test_bits_of_a_model(tmp_path: Path, name: str, config: dict[str, Any] | None, bits: int | None):
    path = name
    if config is not None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        path = str(tmp_path / name)
    assert bits_of(path) == bits


def test_a_comparison(bench: Bench):
    a = bench.score("--output", str(bench.root / "a"), rows=ROWS, score={"text": "{{ q }}"})
    b = bench.score("--output", str(bench.root / "b"), rows=ROWS, score={"text": "{{ q }}", "context": 8})
    to = bench.root / "pair.html"
    result = CliRunner().invoke(cli, ["compare", str(a.output), str(b.output), "--html", str(to)])
    assert (result.exit_code, result.stdout) == (0, f"{to}\n")
    page = Reader(to.read_text())
    assert "score.context" in page.text
    assert "perplexity, B / A" in page.text
    found = json.loads(CliRunner().invoke(cli, ["compare", str(a.output), str(b.output), "--json"]).stdout)
    assert set(found["paired"]) == {"joined_by", "matched", "only_a", "only_b", "figures", "measure", "most"}
    dots = [label for label in labels(page) if label.startswith("A ")]
    assert len(dots) == found["paired"]["figures"]["documents"]
    both = CliRunner().invoke(cli, ["compare", str(a.output), str(b.output), "--html", str(to), "--json"])
    assert both.exit_code == 2


@pytest.mark.slow
def test_rollouts(bench: Bench):
    rows = [{"q": row["q"], "answer": "4"} for row in ROWS]
    sampling = {"max_tokens": 6, "temperature": 1.0, "n": 4}
    done = bench.run(job="rollout", rows=rows, sampling=sampling, rewards=[{"fn": "last_number", "args": {"column": "answer"}}])
    assert done.code == 0, done.stderr
    page = reported(done.output)
    right = [record["reward"] for record in done.records]
    assert f"last_number: pass@1 {sum(right) / len(right):.3f}, " in page.text
    assert "pass@k" in {attributes["aria-label"] for tag, attributes in page.elements if tag == "figure"}
    assert all(["last_number", f"{reward:.4g}"] in shown["facts"] for shown, reward in zip(page.samples["records"], right, strict=True))


def test_speed_over_the_time_of_work(tmp_path: Path):
    """Two starts a day apart, each of 200 intervals of 30 s."""
    paths, began = RunPaths(tmp_path), datetime(2026, 1, 1, tzinfo=UTC)
    for day in range(2):
        start = began + timedelta(days=day)
        append_line(paths.sessions, {"event": "start", "time": start.isoformat(), "pid": 1})
        for number in range(1, 201):
            tokens = {"prompt_tokens": 0, "generated_tokens": number, "scored_tokens": 0, "peak_memory_bytes": number}
            line = {"rows": 1, "errors": 0, **tokens, "tokens_per_second": 100.0 if day else 300.0, "padding_waste": 0.1}
            append_line(paths.metrics, {"time": (start + timedelta(seconds=30 * number)).isoformat(), **line})
    found = intervals(history(paths))
    assert len(found) == 160
    assert found[-1].end == 2 * 200 * 30
    assert sum(each.seconds for each in found) == 2 * 200 * 30
    assert sum(each.tokens_per_second * each.seconds for each in found) == 200 * 30 * (100 + 300)
    assert (found[-1].memory, sum(each.begins for each in found)) == (200, 2)


@pytest.mark.draws
def test_a_run_whose_rows_all_fail_has_a_report(bench: Bench):
    done = bench.run(rows=[{"q": None}, {"q": None}])
    assert done.code == 3
    page = (done.output / "report.html").read_text(encoding="utf-8")
    assert "Quarantined rows by stage and class" in page
