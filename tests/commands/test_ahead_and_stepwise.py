"""Every kind of job decodes one step ahead and step by step: the parts have the same bytes wherever the batches are the same.

They are the same in deterministic mode. Else a row that ends leaves one step later ahead, as its end is seen while the next step computes:
so others join later, and a product has other rows beside them, whose sums may round otherwise. There a run ahead is held to one with the
same batches, in which each step is read before the next one is built.

Shortages of memory, rows with pictures, policies between groups and the other ways of sampling: tests/runner/engine/test_one_step_ahead.py,
test_static_shortage.py and test_random_shortages.py. Scores, vectors and classes have no steps: they stand here as kinds of jobs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw
from mlx_bulk.runner.checks.checked_model import CheckedModel
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.engine import decode_batch
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.runs.run_dir import Start

from ..checkpoints import LLAMA, write_checkpoint
from ..jobs.support.bench import Bench, Record
from ..reward_checkpoints import write_reward_model
from .test_cluster_run import parts

ROWS: list[Record] = [
    {
        "q": "once upon a time there was " * (1 + row % 4) + f"number {row}",
        "chat": [{"role": "user", "content": f"Say {row}"}, {"role": "assistant", "content": "word " * (1 + row % 3)}],
        "max": 2 + 5 * (row % 4),
    }
    for row in range(14)
]
TEXT: dict[str, Any] = {"prompt": {"text": "{{ q }}"}}
LONG: dict[str, Any] = {"max_tokens": 14, "temperature": 1.0}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}
GENERATE: dict[str, dict[str, Any]] = {
    "samples, limits and stops": {
        "sampling": LONG
        | {"n": 3, "top_p": 0.95, "stop": ["e", "the "], "stop_token_ids": [300, 301, 302], "columns": {"max_tokens": "max"}},
        "logprobs": {"prompt": True, "top": 3, "stats": True},
    },
    "greedy": {"sampling": LONG | {"temperature": 0, "min_tokens": 3}, "logprobs": {"top": 2}},
    "penalties": {"sampling": LONG | {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "dry_multiplier": 0.8, "n": 2}},
    "a grammar": {"sampling": LONG | {"n": 2}, "structured": {"json_schema": SCHEMA}},
    "quantized keys": {"sampling": LONG | {"n": 2}, "batch": {"kv_bits": 8, "kv_group": 32}},
    "keys of 4 bits": {"sampling": LONG | {"n": 2}, "batch": {"kv_bits": 4, "kv_group": 32, "kv_start": 6}},
}
CASES: dict[str, dict[str, Any]] = {name: {"job": "generate", **TEXT, **sections} for name, sections in GENERATE.items()} | {
    "scores": {"job": "score", "score": {"text": "{{ q }}"}, "logprobs": {"top": 2}},
    "chats": {"job": "score", "score": {"messages": "chat"}},
    "vectors": {"job": "embed", "embed": {"pooling": "mean"}, **TEXT},
    "classes": {"job": "classify", "classify": {}, **TEXT},
    "rollouts": {
        "job": "rollout",
        **TEXT,
        "sampling": LONG | {"n": 3},
        "rewards": [{"fn": "length"}],
        "rounds": 2,
        "policy": {"reference": "base"},
    },
}
QUICK = ("samples, limits and stops",)
NAMES = [pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


def at_once(*given: Any) -> draw.Launched:
    """A step that is read as soon as it is sent."""
    launched = draw.launch(*given)
    read = launched.read()
    return draw.Launched(launched.ids, lambda: read)


def written(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, output: str, ahead: bool, deterministic: bool, stepwise: bool) -> Any:
    """The parts of a run that draws as on Metal and CUDA. With MLX_BULK_CPU=generic the layers compute as there, too (.ci/run)."""
    setups: list[Setup] = []
    made: Callable[..., Setup] = CheckedModel.setup

    def chosen(checked: CheckedModel, *given: Any) -> Setup:
        setups.append(replace(made(checked, *given), ahead=ahead))
        return setups[-1]

    own = dict(CASES[name])
    model = bench.root / ("classifier" if own["job"] == "classify" else "heads of 32")
    if not model.exists():
        if own["job"] == "classify":
            write_reward_model(model, labels=3)
        else:
            write_checkpoint(model, LLAMA | {"head_dim": 32})  # which divide into groups
    batch = {"rows": 4, "rows_per_shard": 8, "deterministic": deterministic, **own.pop("batch", {})}
    config = {
        "model": {"path": str(model)},
        "data": {"path": str(bench.write_rows(ROWS))},
        "batch": batch,
        "output": {"path": str(bench.root / output)},
        **own,
    }
    path = bench.root / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    with monkeypatch.context() as patched:
        for module in (draw, logprobs):
            patched.setattr(module, "on_cpu_path", lambda: False)
        patched.setattr(CheckedModel, "setup", chosen)
        if stepwise:
            patched.setattr(decode_batch, "launch", at_once)
        parsed: Any = load_config(path)
        summary = session.run_job(parsed, KINDS[parsed.job], Start(), HostProcess(), "nothing", ModelWork(ModelPool()))
    assert summary.complete
    assert summary.errors == 0
    assert setups or parsed.job in ("embed", "classify")
    return parts(bench.root / output)


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_runs_have_the_same_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str):
    ahead, step_by_step = (written(bench, monkeypatch, name, f"ahead {on}", on, True, not on) for on in (True, False))
    assert ahead == step_by_step


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_with_the_same_batches_have_the_same_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str):
    ahead, read_at_once = (written(bench, monkeypatch, name, f"stepwise {on}", True, False, on) for on in (False, True))
    assert ahead == read_at_once
