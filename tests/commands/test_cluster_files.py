"""Workers do not see the driver's files: those that a config names go out with the run, or the worker is refused with a reason.

Workers are threads here; see ThreadFleet. The driver's files are gone when a worker hears of the run.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.rewards.functions import find_functions, function_sources
from mlx_bulk.runner.cluster.config_files import with_values
from mlx_bulk.runner.cluster.description import RunDescription
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import RunOffer
from mlx_bulk.runner.core.errors import DataError, ModelError
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.parcels.file_messages import Piece
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork, SessionWork
from mlx_bulk.runner.runs.run_dir import Start
from mlx_bulk.runner.store.results import read_results

from ..adapters import write_adapter
from ..checkpoints import loaded
from ..jobs.support.bench import Bench, Record
from ..jobs.support.cluster_runs import SETTINGS, engine
from ..runner.support.thread_fleet import ThreadFleet

ALONE: dict[str, Any] = {**SETTINGS, "workers": 1}
ROWS: list[Record] = [{"q": "word " * (1 + row % 5)} for row in range(6)]
REWARDS = """
from scoring.lengths import long_enough

def score(completions, **kwargs):
    return [long_enough(str(text)) for text in completions]
"""
TEMPLATE = "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}<assistant> "
SCHEMA = '{"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": false}'


@pytest.fixture
def files(bench: Bench) -> Path:
    """A folder with what configs may name."""
    near = bench.root / "near"
    (near / "scoring").mkdir(parents=True)
    (near / "scoring" / "__init__.py").touch()
    (near / "scoring" / "lengths.py").write_text("def long_enough(text):\n    return float(len(text) % 3)\n")
    (near / "scoring" / "judge.py").write_text("def judge(completions, **kwargs):\n    return [0.0] * len(completions)\n")
    (near / "rewards.py").write_text(REWARDS)
    (near / "template.jinja").write_text(TEMPLATE)
    (near / "schema.json").write_text(SCHEMA)
    write_adapter(near / "adapter", loaded(bench.model).network)
    write_adapter(near / "other", loaded(bench.model).network, seed=4)
    width = json.loads((bench.model / "config.json").read_text())["hidden_size"]
    np.save(near / "ranges.npy", np.random.default_rng(0).normal(size=(20, width)).astype(np.float32))
    return near


class Elsewhere(ThreadFleet):
    """A fleet whose workers do not see ``folder``: what is read once is gone, and paths of adapters lead nowhere."""

    def __init__(self, folder: Path):
        self.folder, self.away = folder, folder.with_name("away")
        super().__init__(engine, 1)

    def send(self, worker: str, message: Any) -> None:
        if isinstance(message, RunOffer):
            described = RunDescription.of_offer(message)
            described = replace(described, config=with_values(described.config, dict.fromkeys(described.adapters, "/nowhere/adapter")))
            message = RunOffer(message.run, described.offer().description)
            if not described.adapters:
                self.folder.rename(self.away)
        super().send(worker, message)

    def end(self, dismiss: bool) -> None:
        super().end(dismiss)
        if self.away.exists():
            self.away.rename(self.folder)


def run(bench: Bench, work: SessionWork, output: str, left_out: tuple[str, ...] = (), **sections: Any) -> Any:
    path = bench.write_config(rows=ROWS, output={"path": str(bench.root / output)}, **sections)
    written = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({name: section for name, section in written.items() if name not in left_out}))
    config: Any = load_config(path)
    return session.run_job(config, KINDS[config.job], Start(), HostProcess(), "nothing", work)


ROLLED: dict[str, Any] = {"job": "rollout", "sampling": {"n": 2, "max_tokens": 4, "temperature": 1.0}}


def cases(near: Path) -> dict[str, dict[str, Any]]:
    return {
        "rewards and a chat template": {
            **ROLLED,
            "prompt": {"user": "{{ q }}", "chat_template": str(near / "template.jinja")},
            "rewards": [{"fn": "length", "args": {"over": 1, "per": 4}}, {"fn": f"{near / 'rewards.py'}:score", "weight": 2}],
        },
        "a policy's adapter": {**ROLLED, "policy": {"adapter": str(near / "adapter")}},
        "a schema": {"structured": {"json_schema": str(near / "schema.json")}, "sampling": {"max_tokens": 24}},
        "a model's adapter": {"model": {"path": None, "adapter": str(near / "adapter")}},
        "ranges of int8": {
            "job": "embed",
            "embed": {"pooling": "mean", "dtype": "int8", "calibration": str(near / "ranges.npy")},
            "left_out": ("sampling",),
        },
        "a reference's adapter": {
            "job": "score",
            "score": {"text": "{{ q }}", "reference": {"path": None, "adapter": str(near / "other")}},
            "left_out": ("sampling", "prompt"),
        },
    }


QUICK = ("rewards and a chat template", "a model's adapter")


@pytest.mark.slow
@pytest.mark.parametrize("case", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in cases(Path())])
def test_files_of_the_driver_alone_go_to_the_worker(bench: Bench, files: Path, case: str):
    sections = cases(files)[case]
    for section in (sections.get("model"), sections.get("score", {}).get("reference")):
        if section is not None:
            section["path"] = str(bench.model)
    plain = run(bench, ModelWork(ModelPool()), "plain", **sections)
    fleet = Elsewhere(files)
    over = run(bench, ClusterWork(lambda: fleet, ClusterConfig(**ALONE)), "cluster", **sections)
    fleet.end(True)
    assert (over.complete, over.rows, over.records, over.errors) == (True, 6, plain.records, 0)
    ours, theirs = ([each for batch in read_results(bench.root / output) for each in batch.to_pylist()] for output in ("cluster", "plain"))
    assert [list(each) for each in ours] == [list(each) for each in theirs]
    exact = ["row", "completion", "reward", "rewards", "policy_sha"]
    assert [{name: each.get(name) for name in exact} for each in ours] == [{name: each.get(name) for name in exact} for each in theirs]
    for name in ("logprobs", "ref_logprobs", "embedding"):
        for one, other in zip(ours, theirs, strict=True):
            if one.get(name) is not None:
                atol = 1 if name == "embedding" else 1e-4
                np.testing.assert_allclose(np.array(one[name], float), np.array(other[name], float), atol=atol)
    assert any(isinstance(message, Piece) for _, message in fleet.sent) == ("adapter" in case)


def test_an_adapter_that_the_worker_sees_is_not_sent(bench: Bench, files: Path):
    fleet = ThreadFleet(engine, 1)
    sections = cases(files)["a policy's adapter"]
    assert run(bench, ClusterWork(lambda: fleet, ClusterConfig(**ALONE)), "cluster", **sections).complete
    fleet.end(True)
    assert not any(isinstance(message, Piece) for _, message in fleet.sent)


def test_a_module_must_be_installed_on_the_worker(bench: Bench, files: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver's own working folder has it, and the worker's does not."""
    monkeypatch.chdir(files)
    fleet = Elsewhere(files / "scoring")
    with pytest.raises(
        ModelError, match=r"worker-1: .*rewards\[0\].fn: .*No module named 'scoring'.*must be installed on each worker: scoring.judge"
    ):
        run(
            bench,
            ClusterWork(lambda: fleet, ClusterConfig(**ALONE)),
            "cluster",
            **ROLLED,
            rewards=[{"fn": "scoring.judge:judge"}],
        )
    fleet.end(True)


def test_a_reward_file_that_changed_since_it_was_read_is_not_sent(files: Path):
    found = find_functions([RewardConfig(fn=f"{files / 'rewards.py'}:score")])
    assert list(function_sources(found)["rewards[0].fn"]) == ["rewards.py", "scoring/__init__.py", "scoring/lengths.py"]
    (files / "rewards.py").write_text(REWARDS + "\n")
    with pytest.raises(DataError, match="changed while the run worked"):
        function_sources(found)
