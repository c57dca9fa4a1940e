"""Rollouts over workers that are threads, under the policies of a trainer's folder."""

from pathlib import Path
from typing import Any

from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.runner.cluster.fleet_work import ClusterWork
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.store.results import read_results

from ...adapters import write_adapter
from ...checkpoints import loaded
from ...runner.support.thread_fleet import ThreadFleet
from .bench import Bench, Record
from .cluster_runs import SETTINGS, run

ROWS: list[Record] = [{"q": "word " * (1 + row % 5)} for row in range(24)]
PER_SHARD = 4


def roll(bench: Bench, work: Any, host: Any = None, output: str = "cluster", **sections: Any) -> Any:
    """Does rollouts in small shards, under the policies that the folder of adapters brings."""
    given: dict[str, Any] = {
        "job": "rollout",
        "rows": ROWS,
        "sampling": {"n": 2, "max_tokens": 4, "temperature": 1.0},
        "batch": {"rows": 4, "rows_per_shard": PER_SHARD},
        "policy": {"watch": str(bench.root / "adapters")},
        **sections,
    }
    return run(bench, work, output, host, **given)


def step(bench: Bench, number: int, **how: Any) -> Path:
    """Writes an adapter as a trainer's step."""
    return write_adapter(bench.root / "adapters" / f"step_{number:06d}", loaded(bench.model).network, seed=number, **how)


def over(fleet: ThreadFleet, **settings: Any) -> ClusterWork:
    """Returns the work of a run over a fleet."""
    return ClusterWork(lambda: fleet, ClusterConfig(**{**SETTINGS, **settings}))


def records(bench: Bench, output: str = "cluster") -> list[Record]:
    """Returns all records of a run."""
    return [record for batch in read_results(bench.root / output) for record in batch.to_pylist()]


def versions(found: list[Record]) -> dict[tuple[int, int], set[int]]:
    """The versions of each round and shard."""
    shards: dict[tuple[int, int], set[int]] = {}
    for record in found:
        shards.setdefault((record["round"], record["row"] // PER_SHARD), set()).add(record["policy_version"])
    return shards


def events(bench: Bench) -> list[tuple[str, int]]:
    """Returns which policies were taken and refused, with their versions."""
    lines = read_lines(bench.root / "cluster" / "policies" / "events.jsonl")
    return [(line["event"], line["version"]) for line in lines if line["event"] in ("taken", "refused")]
