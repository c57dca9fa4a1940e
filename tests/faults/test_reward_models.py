"""Tests kills of runs with a reward model: a group has all of its ratings or is not there, and the end is that of an unbroken run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.runner.store import journal

from ..reward_checkpoints import write_reward_model
from .children import Children
from .points import COMMITTING, FRAME, Point
from .tiny_runs import TinyRun, parts

pytestmark = pytest.mark.slow

RATED = ("mlx_bulk.runner.pool_engine.reward_rater:RewardRater.rated",)
BATCH = ("mlx_bulk.runner.pool_engine.pooler:Pooler._pool_batch",)
GROUP = ("mlx_bulk.runner.store.writer:Writer.add_group",)
RATE = ("mlx_bulk.jobs.rewards.group_judge:GroupJudge.rate",)
POINTS = [
    Point("before the first ratings", RATED),
    Point("between batches of a rating", BATCH, nth=2),
    Point("before a group's rewards are put together", RATE, nth=3),
    Point("before a group", GROUP, nth=2),
    Point("after a group", GROUP, "", "after", 4),
    Point("before a frame", FRAME, nth=3),
    COMMITTING[2],
    COMMITTING[5],
]
KILLS: dict[str, tuple[dict[str, Any], list[Point]]] = {"all": ({}, POINTS), "best": ({"select": "best"}, POINTS[1::3])}


def begun(folder: Path, children: Children, model: Path, sections: dict[str, Any]) -> TinyRun:
    run = TinyRun(folder, children)
    run.write("rollout")
    config = yaml.safe_load((folder / "job.yaml").read_text())
    rewards = [{"model": str(model)}, {"fn": "regex", "args": {"pattern": "e"}}]
    config |= {"rewards": rewards, "drop_degenerate": False, "rounds": 1, **sections}
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    return run


def journalled(run: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for file in run.glob("journal/*"):
        kept, _ = journal.peek(file)
        for batch in kept.results if kept is not None else []:
            records += batch.to_pylist()
    return records


@pytest.mark.parametrize(("sections", "points"), KILLS.values(), ids=KILLS)
def test_a_kill_leaves_groups_with_all_their_ratings(tmp_path: Path, children: Children, sections: dict[str, Any], points: list[Point]):
    model = write_reward_model(tmp_path / "rater")
    whole = begun(tmp_path / "whole", children, model, sections)
    assert whole.start().code == 3
    run = begun(tmp_path / "broken", children, model, sections)
    for point in points:
        run.killed_at(point)
        records = journalled(run.path)
        assert all(reward is not None for record in records for reward in record["rewards"].values())
        rows = [record["row"] for record in records]
        assert {rows.count(row) for row in rows} <= {1 if sections else 3}
    ended = run.start()
    assert ended.code == 3, ended.stderr
    assert parts(run.path) == parts(whole.path)
    assert run.verify().exit_code == 3
