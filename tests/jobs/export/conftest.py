"""Runs to export, each made once."""

from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.store.paths import RunPaths

from ..support.bench import Bench, Done, Record
from ..support.exported_runs import HOSTILE


@pytest.fixture(scope="package")
def generated(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """A complete run of two shards with a failure, two samples a row, and all logprobs."""
    done = Bench(tmp_path_factory.mktemp("generated"), model).run(
        rows=HOSTILE,
        data={"key": "id"},
        sampling={"n": 2, "temperature": 1.0},
        logprobs={"prompt": True, "top": 2},
        batch={"rows_per_shard": 4},
    )
    assert done.code == 3, done.stderr
    return done


@pytest.fixture(scope="package")
def incomplete(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """A run that has committed one shard of three."""
    done = Bench(tmp_path_factory.mktemp("incomplete"), model).run(batch={"rows_per_shard": 2})
    commits = RunPaths(done.output).commits
    commits.write_bytes(b"".join(line for line in commits.read_bytes().splitlines(keepends=True) if b'"shard":0' in line))
    return done


@pytest.fixture(scope="package")
def scored(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Done]:
    """A run for each shape of scores."""
    rows: list[Record] = [{"q": "Is it?", "a": ["yes", "no"]}, {"q": "Was it?", "a": ["no", "never"]}]
    sections: dict[str, Any] = {
        "text": {"score": {"text": "{{ q }}"}, "logprobs": {"top": 2}},
        "choices": {"score": {"choices": "a"}, "prompt": {"text": "{{ q }}"}},
    }
    return {name: Bench(tmp_path_factory.mktemp(name), model).score(rows=rows, **given) for name, given in sections.items()}
