"""The plan's bytes on disk match those of the run's results and errors, within a tenth."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.estimate import survey

from ...jobs.support.bench import Bench

WITHIN = 0.1  # what the plan promises


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions of very unlike lengths, with columns of other kinds beside them."""
    rng = np.random.default_rng(seed)
    words = ["apple", "Ärger", "the", "seventeen", "of", "東京", "run", "a", "plainly", "12"]
    made: list[dict[str, Any]] = []
    for i in range(count):
        text = " ".join(rng.choice(words, int(rng.lognormal(2.2, 0.7)) + 1))
        made.append({"q": text, "choices": [" yes", " no, " + text[:20]], "label": 1, "weight": float(rng.random()), "tags": ["a", str(i)]})
    return made


def disk(run: Path) -> int:
    return sum(file.stat().st_size for folder in ("results", "errors") for file in (run / folder).iterdir())


def check(bench: Bench, config: dict[str, Any], count: int = 100) -> None:
    path = bench.root / "config.yaml"
    run = bench.root / "run"
    sections = {"model": {"path": "demo"}, "data": {"path": str(bench.write_rows(rows(count)))}, "output": {"path": str(run)}}
    path.write_text(json.dumps(sections | config))
    planned = CliRunner().invoke(cli, ["plan", str(path), "--json"])
    assert planned.exit_code == 0, planned.output
    done = CliRunner().invoke(cli, ["run", str(path), "--no-supervised", "-q"])
    assert done.exit_code in (0, 3), done.output
    foreseen = json.loads(planned.stdout)["disk_bytes"]
    assert disk(run) > 20_000
    assert foreseen == pytest.approx(disk(run), rel=WITHIN)


GENERATE = {"job": "generate", "prompt": {"user": "{{ q }}"}, "sampling": {"max_tokens": 8, "ignore_eos": True}}
SCORE = {"job": "score"}
ALL = {"prompt": True, "top": 3, "stats": True}
JOBS: dict[str, dict[str, Any]] = {
    "completions": GENERATE | {"batch": {"rows_per_shard": 16}},
    "samples with all logprobs": GENERATE | {"logprobs": ALL, "sampling": {"max_tokens": 4, "ignore_eos": True, "n": 6}},
    "rollouts": {"job": "rollout", "prompt": {"user": "{{ q }}"}, "sampling": {"max_tokens": 8, "ignore_eos": True, "n": 2}},
    "documents": SCORE | {"score": {"text": "{{ q }}", "reference": "demo"}, "logprobs": {"top": 2}},
    "choices": SCORE | {"prompt": {"text": "{{ q }}"}, "score": {"choices": "choices", "label": "label"}},
    "rows that fail": GENERATE | {"prompt": {"user": "{{ q if weight < 0.5 else weight.nothing }}"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_plan_knows_the_size_of(job: dict[str, Any], bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 50)  # of 100 rows
    check(bench, job)
