"""Tests kills in the middle of a group: only whole groups are on the disk, and the end is that of an unbroken run."""

from collections import Counter
from pathlib import Path

import pytest
from mlx_bulk.runner.store import journal

from .points import COMMITTING, FRAME, JOURNALLING, Point
from .tiny_runs import ROWS, TinyRun, parts

pytestmark = pytest.mark.slow

SAMPLES = 3
OUTCOME = ("mlx_bulk.runner.pipeline.recorder:Recorder.record",)
GROUP = ("mlx_bulk.runner.store.writer:Writer.add_group",)
RATE = ("mlx_bulk.jobs.rewards.group_judge:GroupJudge.rate",)

DEATHS = {
    "within groups": [Point(f"outcome {nth}", OUTCOME, nth=nth) for nth in (2, 11, 43)],
    "around ratings": [
        Point("before a rating", RATE, nth=3),
        Point("before a group", GROUP, nth=2),
        Point("after a group", GROUP, "", "after", 5),
    ],
    "in the second round": [Point("frame of the second round", FRAME, r"/journal/0000000[5-9]"), *JOURNALLING[3:5]],
    "around a commit": [COMMITTING[2], COMMITTING[5], COMMITTING[7]],
}


def whole_groups(run: Path) -> Counter[int]:
    """Returns the number of records of each row in the journals, with its shard."""
    found = Counter[tuple[int, int]]()
    for file in run.glob("journal/*"):
        kept, _ = journal.peek(file)
        for batch in kept.results if kept is not None else []:
            found.update((int(file.name), row) for row in batch.column("row").to_pylist())
    return Counter(found.values())


@pytest.mark.parametrize("points", DEATHS.values(), ids=DEATHS)
def test_a_kill_leaves_whole_groups_and_loses_none(run: TinyRun, whole: dict[str, dict[str, bytes]], points: list[Point]):
    run.write("rollout")
    for point in points:
        run.killed_at(point)
        assert whole_groups(run.path).keys() <= {SAMPLES}
        assert run.verify().exit_code == 5
    ended = run.start()
    assert ended.code == 3, ended.stderr
    assert parts(run.path) == whole["rollout"]
    verified = run.verify()
    assert " DegenerateGroup" in verified.output
    assert "results  0 " not in verified.output
    assert (verified.exit_code, f"{ROWS} rows, each once in each of 2 rounds" in verified.output) == (3, True)
