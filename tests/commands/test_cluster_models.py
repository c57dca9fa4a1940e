"""A worker finds the driver's model by its weights, below --models, where it does not lie where the driver has it.

Workers are threads here; see ThreadFleet.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.cluster.config_files import with_values
from mlx_bulk.runner.cluster.description import RunDescription
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.cluster.messages import RunOffer
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.worker.engine_service import serve_engine

from ..jobs.support.bench import Bench, Record
from ..jobs.support.cluster_runs import run
from ..runner.support.thread_fleet import PipeEnd, ThreadFleet

ROWS: list[Record] = [{"q": "word " * (1 + row % 5)} for row in range(6)]
THERE = "models/of the driver"  # as a hub id would look


class Elsewhere(ThreadFleet):
    """A fleet of one worker, which does not see the driver's folders; its own models lie below ``models``."""

    def __init__(self, models: Path | None):
        def serve(end: PipeEnd) -> None:
            serve_engine(end, KINDS, HostProcess(), models=models)

        super().__init__(serve, 1)

    def send(self, worker: str, message: Any) -> None:
        if isinstance(message, RunOffer):
            described = RunDescription.of_offer(message)
            described = replace(described, config=with_values(described.config, dict.fromkeys(described.models, THERE)))
            message = RunOffer(message.run, described.offer().description)
        super().send(worker, message)


def over(bench: Bench, models: Path | None) -> Any:
    fleet = Elsewhere(models)
    try:
        return run(bench, ClusterWork(lambda: fleet, ClusterConfig(workers=1, lease_seconds=0.05)), "cluster", rows=ROWS)
    finally:
        fleet.end(True)


def spoiled(model: Path, folder: Path) -> None:
    """Copies a model with one bit of its weights turned."""
    shutil.copytree(model, folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)


def test_a_model_is_found_by_its_weights_below_a_folder(bench: Bench):
    models = bench.root / "models"
    spoiled(bench.model, models / "a")
    (models / "b").mkdir()
    (models / "b" / "config.json").write_text("[]")
    shutil.copytree(bench.model, models / "org" / "another name")
    done = over(bench, models)
    assert (done.complete, done.records) == (True, 6)


def test_without_a_folder_the_worker_says_where_it_has_looked(bench: Bench):
    with pytest.raises(ModelError, match=r"^worker-1: model\.path: the driver has this model in its folder models/of the driver, which"):
        over(bench, None)


def test_a_folder_without_the_model_is_named(bench: Bench):
    models = bench.root / "models"
    spoiled(bench.model, models / "a")
    with pytest.raises(ModelError, match=r"none of the 1 models below .*models has the same weights \(sha256 [0-9a-f]{12}…, .*\); copy it"):
        over(bench, models)
