"""Writes reward functions into files of a test's folder, and makes a group to rate."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from mlx_bulk.configs.rewards import RewardConfig
from mlx_bulk.jobs.rewards.functions import find_functions
from mlx_bulk.jobs.rewards.pool import Group, RewardPool
from mlx_bulk.runner.pipeline.job import Ratings

PAIR = Group("1 + 1?", ["2", "3"], [[5, 1], [6, 1]], {"answer": "2", "level": 3})


def written(folder: Path, source: str, name: str = "rewards.py") -> Path:
    """Writes a file with this source into the folder."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(source), encoding="utf-8")
    return file


def named(*places: str, **settings: Any) -> list[RewardConfig]:
    """Returns a config's rewards, each named after its function."""
    return [RewardConfig(fn=place, **settings) for place in places]


def rated_each(folder: Path, sources: Sequence[str], *names: str) -> list[Ratings]:
    """Returns the ratings of ``PAIR`` by the functions of these names in each source, a file of its own.

    One process loads all files, as starting one takes longer than its calls.
    """
    files = [written(folder / str(number), source) for number, source in enumerate(sources)]
    found = rated([RewardConfig(fn=f"{file}:{name}", name=f"{name}_{at}") for at, file in enumerate(files) for name in names])
    return [
        Ratings({name: found.rewards[f"{name}_{at}"] for name in names}, {name: found.errors[f"{name}_{at}"] for name in names})
        for at in range(len(files))
    ]


def rated(rewards: list[RewardConfig], group: Group = PAIR, processes: int = 1) -> Ratings:
    """Returns a pool's ratings of one group by these functions."""
    pool = RewardPool(find_functions(rewards), processes)
    try:
        return pool.rate(group).result(60)
    finally:
        pool.close()
