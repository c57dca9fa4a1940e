"""Every kind of job over three workers, one of which dies on the way: the parts are those of a plain run, byte for byte.

Workers are threads here; see ThreadFleet.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import RunOffer
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.model_work import ModelWork, SessionWork
from mlx_bulk.runner.runs.summary import Summary

from ..encoder_checkpoints import tiny_bert
from ..jobs.support import sweep_runs
from ..jobs.support.bench import Bench, Record
from ..jobs.support.classifiers import write_classifier
from ..jobs.support.cluster_runs import mortal_fleet, parts, run_config
from ..jobs.verify.test_verify import verify
from ..reward_checkpoints import write_reward_model
from ..runner.support.thread_fleet import ThreadFleet

pytestmark = pytest.mark.slow

ROWS: list[Record] = [
    {
        "q": "word " * (1 + row % 7),
        "chat": [{"role": "user", "content": f"Say {row}"}, {"role": "assistant", "content": "word " * (1 + row % 3)}],
        "choices": ["the king", "the queen is dead", "no"],
        "right": row % 3,
        "group": f"g{row % 2}",
        "max": 2 + row % 4,
    }
    for row in range(40)
]
TEXT: dict[str, Any] = {"prompt": {"text": "{{ q }}"}}
USER: dict[str, Any] = {"prompt": {"user": "{{ q }}"}}
HOT: dict[str, Any] = {"n": 3, "max_tokens": 4, "temperature": 1.0}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}


def models(root: Path) -> dict[str, Path]:
    return {
        "bert": tiny_bert(root / "bert"),
        "classifier": write_classifier(root / "classifier", labels=3),
        "reranker": tiny_bert(root / "reranker", labels=1),
        "reward": write_reward_model(root / "reward"),
    }


def cases(root: Path, model: Path) -> dict[str, dict[str, Any]]:
    made = models(root)
    return {
        "greedy": {"job": "generate", **USER, "sampling": {"max_tokens": 6, "temperature": 0}, "logprobs": {"prompt": True, "top": 2}},
        "settings of rows": {"job": "generate", **TEXT, "sampling": HOT | {"columns": {"max_tokens": "max"}}},
        "structured": {"job": "generate", **TEXT, "structured": {"json_schema": SCHEMA}, "sampling": {"max_tokens": 16}},
        "documents": {"job": "score", "score": {"text": "{{ q }}", "group_by": "group"}},
        "chats": {"job": "score", "score": {"messages": "chat"}},
        "choices": {"job": "score", **TEXT, "score": {"choices": "choices", "label": "right"}},
        "a reference": {"job": "score", "score": {"text": "{{ q }}", "reference": str(model)}},
        "vectors of an encoder": {"job": "embed", "model": {"path": str(made["bert"])}, "embed": {"pooling": "mean"}, **TEXT},
        "vectors of a decoder": {"job": "embed", "embed": {"pooling": "lasttoken", "dtype": "ubinary"}, **TEXT},
        "classes": {"job": "classify", "model": {"path": str(made["classifier"])}, **TEXT, "classify": {}},
        "pairs": {
            "job": "classify",
            "model": {"path": str(made["reranker"])},
            "classify": {"query": "{{ q }}", "documents": "choices"},
        },
        "rollouts": {
            "job": "rollout",
            **USER,
            "sampling": HOT,
            "rewards": [{"fn": "length"}],
            "rounds": 2,
            "policy": {"reference": "base"},
        },
        "rollouts with a reward model": {
            "job": "rollout",
            **TEXT,
            "sampling": HOT,
            "rewards": [{"model": str(made["reward"])}],
            "select": "best",
        },
    }


NAMES = [
    *("greedy", "settings of rows", "structured", "documents", "chats", "choices", "a reference", "vectors of an encoder"),
    *("vectors of a decoder", "classes", "pairs", "rollouts", "rollouts with a reward model"),
]


def run(bench: Bench, work: SessionWork, output: str, sections: dict[str, Any]) -> Summary:
    config = {
        "model": {"path": str(bench.model)},
        "data": {"path": str(bench.write_rows(ROWS))},
        "batch": {"rows": 4, "rows_per_shard": 8, "deterministic": True},
        "output": {"path": str(bench.root / output)},
        **sections,
    }
    path = bench.root / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return run_config(path, work)


@pytest.mark.parametrize("name", NAMES)
def test_each_kind_has_the_bytes_of_a_plain_run_whoever_dies(bench: Bench, name: str):
    found = cases(bench.root, bench.model)
    assert list(found) == NAMES
    plain = run(bench, ModelWork(ModelPool()), "plain", found[name])
    fleet, frames = mortal_fleet(3, nth=2)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=3)), "cluster", found[name])
    fleet.end(True)
    assert next(frames) > 2
    assert (over.complete, over.rows, over.records, over.errors) == (True, plain.rows, plain.records, plain.errors)
    assert over.errors == 0
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    assert (bench.root / "cluster" / "stats.arrow").read_bytes() == (bench.root / "plain" / "stats.arrow").read_bytes()
    assert verify(bench.root / "cluster").exit_code == 0


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[ThreadFleet]:
    """The fleets of commands with ``--workers``: three threads, of which one dies at the second frames, and another one comes."""
    opened: list[ThreadFleet] = []

    @contextmanager
    def work(cluster: ClusterConfig | None, deterministic: bool) -> Generator[SessionWork]:
        if cluster is None:
            yield ModelWork(ModelPool())
            return
        fleet, _ = mortal_fleet(3, nth=2)
        opened.append(fleet)
        yield ClusterWork(lambda: fleet, cluster)
        fleet.end(True)

    monkeypatch.setattr("mlx_bulk.jobs.worker.session_work.session_work", work)
    return opened


def test_a_sweep_goes_on_cell_by_cell_with_the_same_workers(bench: Bench, fleets: list[ThreadFleet]):
    base = sweep_runs.base_of(bench, ROWS, batch={"rows": 4, "rows_per_shard": 8, "deterministic": True})
    matrix = {"sampling.temperature": [0, 0.7], "prompt.text": ["{{ q }}", "{{ q }} and"]}
    for folder, more in (("plain", {}), ("cluster", {"cluster": {"workers": 3}})):
        done = sweep_runs.run(bench, base=base, matrix=matrix, output={"path": str(bench.root / folder)}, **more)
        assert done.code == 0, done.stderr
        assert done.last_line == f"sweep: 4 of 4 cells complete -> {bench.root / folder}"
    cells = [path.name for path in (bench.root / "plain").iterdir() if path.is_dir()]
    assert len(cells) == 4
    for cell in cells:
        assert parts(bench.root / "cluster" / cell) == parts(bench.root / "plain" / cell)
        assert verify(bench.root / "cluster" / cell).exit_code == 0
    tables = [sweep_runs.table(bench, folder) for folder in ("cluster", "plain")]
    assert tables[0].drop_columns("seconds").equals(tables[1].drop_columns("seconds"))
    (fleet,) = fleets
    assert len({message.run for _, message in fleet.sent if isinstance(message, RunOffer)}) == 4


def test_rows_of_stdin_go_to_workers(bench: Bench, fleets: list[ThreadFleet]):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    given: dict[str, Any] = {"data": {"path": "-"}, "batch": {"rows": 4, "rows_per_shard": 8, "deterministic": True}}
    for output, options in (("plain", ()), ("cluster", ("--workers", "3"))):
        done = bench.run("--output", str(bench.root / output), *options, stdin=lines, **given)
        assert done.code == 0, done.stderr
    assert len(fleets) == 1
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    assert verify(bench.root / "cluster").exit_code == 0


def test_an_evaluation_over_workers_is_refused(bench: Bench):
    path = bench.root / "eval.yaml"
    path.write_text(yaml.safe_dump({"job": "eval", "model": {"path": "demo"}, "tasks": ["a"], "cluster": {"workers": 2}}))
    done = CliRunner().invoke(cli, ["eval", str(path)])
    assert done.exit_code == 2
    assert "cluster: no such key; it belongs to job: generate" in done.stderr
