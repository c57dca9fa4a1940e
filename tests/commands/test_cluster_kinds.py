"""Every kind of job over three workers, one of which dies on the way: the parts are those of a plain run, byte for byte.

Workers are threads here; see ThreadFleet.
"""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import Frames
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork, SessionWork
from mlx_bulk.runner.runs.run_dir import Start

from ..encoder_checkpoints import tiny_bert
from ..jobs.support.bench import Bench, Record
from ..jobs.support.classifiers import write_classifier
from ..jobs.verify.test_verify import verify
from ..reward_checkpoints import write_reward_model
from ..runner.support.thread_fleet import ThreadFleet
from .test_cluster_run import engine, parts

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


def run(bench: Bench, work: SessionWork, output: str, sections: dict[str, Any]) -> Any:
    config = {
        "model": {"path": str(bench.model)},
        "data": {"path": str(bench.write_rows(ROWS))},
        "batch": {"rows": 4, "rows_per_shard": 8, "deterministic": True},
        "output": {"path": str(bench.root / output)},
        **sections,
    }
    path = bench.root / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    parsed: Any = load_config(path)
    return session.run_job(parsed, KINDS[parsed.job], Start(), HostProcess(), "nothing", work)


@pytest.mark.parametrize("name", NAMES)
def test_each_kind_has_the_bytes_of_a_plain_run_whoever_dies(bench: Bench, name: str):
    found = cases(bench.root, bench.model)
    assert list(found) == NAMES
    plain = run(bench, ModelWork(ModelPool()), "plain", found[name])
    frames = count(1)

    def watch(worker: str, message: object) -> bool:
        if isinstance(message, Frames) and next(frames) == 2:
            fleet.kill(worker)
            fleet.start_worker()
            return False
        return True

    fleet = ThreadFleet(engine, 3, watch)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=3)), "cluster", found[name])
    fleet.end(True)
    assert next(frames) > 2
    assert (over.complete, over.rows, over.records, over.errors) == (True, plain.rows, plain.records, plain.errors)
    assert over.errors == 0
    assert parts(bench.root / "cluster") == parts(bench.root / "plain")
    assert (bench.root / "cluster" / "stats.arrow").read_bytes() == (bench.root / "plain" / "stats.arrow").read_bytes()
    assert verify(bench.root / "cluster").exit_code == 0
