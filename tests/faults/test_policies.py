"""Tests kills while a policy is stored, or before its first record: each record's policy is kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.core.policy import Policy
from mlx_bulk.runner.files.checked_json import read_document
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.policies.policy_store import PolicyStore
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import read_results

from ..adapters import write_adapter
from ..checkpoints import loaded
from .points import FRAME, SYNC, WRITE, Point
from .test_groups import GROUP, OUTCOME
from .tiny_runs import ROWS, TinyRun

pytestmark = pytest.mark.slow

RENAME = ("os:rename",)
NEW, THERE = r"/policies/\.new", r"/policies/[1-9]\d*-[0-9a-f]{12}$"
COLUMNS = ["policy_version", "policy_sha"]

KEEPING = [
    Point("adapter copied, not synced", SYNC, NEW + r"/adapters\.safetensors$"),
    Point("policy.json half written", SYNC, NEW + r"/\.policy\.json", "torn"),
    Point("policy whole, not renamed", RENAME, THERE),
    Point("policy renamed", RENAME, THERE, "after"),
    Point("taken, half noted", WRITE, r'/policies/events\.jsonl \{"event":"taken"', "torn"),
    Point("taken, noted", WRITE, r'/policies/events\.jsonl \{"event":"taken"', "after"),
]
FIRST = [
    Point("before the first record", GROUP),
    Point("torn first record", WRITE, r"/journal/\d+ ", "torn", nth=2),
    Point("first record on the disk", FRAME, when="after", nth=2),
]
LATER = [
    replace(KEEPING[1], nth=2),  # the first is the base's
    *KEEPING[2:5],
    Point("policy on, not drawn from", ("mlx_bulk.runner.policies.policy_updater:PolicyUpdater.load_newest",), when="after"),
]
HOLD = Point("a row of the first shard", OUTCOME, nth=2, action="hold")


def begin(run: TinyRun) -> None:
    run.write("rollout", batch={"deterministic": False}, policy={"watch": "adapters"})


def step(run: TinyRun) -> None:
    write_adapter(run.folder / "adapters" / "step_000001", loaded(run.children.model).network, seed=1)


def recorded(run: Path) -> Iterator[dict[str, Any]]:
    """Version and sha of each record, of those in journals too."""
    for batch in read_results(run, COLUMNS):
        yield from batch.to_pylist()
    for file in run.glob("journal/*"):
        kept, _ = journal.peek(file)
        for batch in kept.results if kept is not None else []:
            yield from batch.select(COLUMNS).to_pylist()


def versions(run: Path) -> set[int]:
    """Of all records; each one's policy is kept, whole."""
    weights = read_document(run / "run.json")["identity"]["model.weights"]
    store, found = PolicyStore(RunPaths(run).policies, weights), {tuple(record.values()) for record in recorded(run)}
    for version, sha in found:
        assert store.policy(Policy(version, sha, None).name).sha == sha
    return {version for version, _ in found}


def goes_on(run: TinyRun) -> set[int]:
    """Runs the same command to its end, and checks that the audit is clean. The versions of its records."""
    ended = run.start()
    assert ended.code == 3, ended.stderr
    assert not list(run.path.glob("policies/.new"))
    assert [(line["event"], line["version"]) for line in read_lines(run.path / "policies" / "events.jsonl")][-1] == ("taken", 1)
    verified = run.verify()
    assert (verified.exit_code, f"{ROWS} rows, each once in each of 2 rounds" in verified.output) == (3, True), verified.output
    assert "wrong" not in verified.output
    return versions(run.path)


def test_killed_around_the_first_policy(run: TinyRun):
    """One run, which dies at one point after the other."""
    begin(run)
    step(run)
    for point in [*KEEPING, *FIRST]:
        run.killed_at(point)
        assert versions(run.path) <= {1}
    assert goes_on(run) == {1}


@pytest.mark.parametrize("point", LATER, ids=lambda point: point.name)
def test_killed_around_a_later_policy(run: TinyRun, point: Point):
    """It comes while rows of the first shard are sampled."""
    begin(run)
    child = run.begin(points=[HOLD, point])
    assert child.at_point() == HOLD.name
    step(run)
    child.go_on()
    ended = child.wait()
    assert ended.killed, f"survived {point.name}: exit code {ended.code}\n{ended.stderr}"
    assert ended.points == [HOLD.name, point.name]
    assert versions(run.path) <= {0}
    assert {1} <= goes_on(run) <= {0, 1}
