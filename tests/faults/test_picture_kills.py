"""Kills runs on pictures at random rows, and in the vision tower: no row lost, none twice, the bytes of an unbroken run."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.runner.store.results import read_results

from ..two_tower_checkpoints import write_two_towers
from ..vision_folders import drawn, picture_bytes, write_vision_model
from .children import Children
from .points import FRAME, RECORD, Point
from .tiny_runs import THOROUGH, TinyRun, parts

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
ROWS, PICTURES = 60, 7
KILLS = 20 if THOROUGH else 4
TOWER = ("mlx_bulk.runner.vision.towers:Tower.features",)
PROMPT = {"user": "{{ q }}", "images": "image"}
JOBS: dict[str, dict[str, Any]] = {
    "generate": {"job": "generate", "sampling": {"max_tokens": 2, "temperature": 1.0, "n": 2}},
    "score": {"job": "score", "score": {"completion": "{{ said }}"}},
    "embed": {"job": "embed", "prompt": {"text": "{{ q }}", "images": "image"}},
    "rollout": {"job": "rollout", "sampling": {"max_tokens": 2, "n": 2}, "rewards": [{"fn": "regex", "args": {"pattern": "e"}}]},
}


@pytest.fixture(scope="module", name="readers")
def children_that_read_pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    model = tmp_path_factory.mktemp("checkpoints") / "vision"
    write_vision_model(model, "qwen2_vl")
    with Children(model, tmp_path_factory.mktemp("children")) as children:
        yield children


def write(run: TinyRun, job: str) -> None:
    """Writes a job over rows of which some have no picture, some two, and one a picture that is cut off."""
    run.folder.mkdir(exist_ok=True)
    for i in range(PICTURES):
        (run.folder / f"{i}.png").write_bytes(picture_bytes(drawn(30 + 20 * i, 40, i)))
    (run.folder / "cut.png").write_bytes(picture_bytes()[:200])
    rows = [{"q": f"What is {i}?", "image": [f"{i % PICTURES}.png", "0.png"][: i % 3], "said": f" a dog {i}"} for i in range(ROWS)]
    if job == "embed":  # a picture or a text
        rows = [{"q": row["q"], "image": row["image"][:1]} | ({"q": ""} if row["image"] else {}) for row in rows]
    rows[9]["image"] = ["cut.png"]
    (run.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"path": str(run.children.model)},
        "data": {"path": "rows.jsonl"},
        "prompt": PROMPT,
        "batch": {"rows": 4, "rows_per_shard": 15, "deterministic": True, "image_memory": 0.000005},
        "output": {"path": "run", "fsync_seconds": 0},
        **JOBS[job],
    }
    (run.folder / "job.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("job", [job for job in JOBS if job != "embed"])
def test_killed_at_random_and_in_the_tower(job: str, readers: Children, tmp_path: Path) -> None:
    run, whole = TinyRun(tmp_path / "broken", readers), TinyRun(tmp_path / "whole", readers)
    for each in (run, whole):
        write(each, job)
    ended = whole.start()
    assert ended.code == 3, ended.stderr
    draw = random.Random(job)
    for _ in range(KILLS):
        at, most = (FRAME, 3) if job == "rollout" else (RECORD, ROWS // KILLS)  # a group of samples is written as a whole
        run.killed_at(Point("at random", at, when=draw.choice(["before", "after"]), nth=draw.randint(1, most)))
    run.killed_at(Point("in the tower", TOWER, when=draw.choice(["before", "after"])))
    ended = run.start()
    assert ended.code == 3, ended.stderr
    assert parts(run.path) == parts(whole.path)
    rows = [row for batch in read_results(run.path, ["row"]) for row in batch.column("row").to_pylist()]
    assert rows == [row for row in range(ROWS) for _ in range(1 if job == "score" else 2) if row != 9]
    assert run.verify().exit_code == 3


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_embedding_runs_killed_at_random_and_in_the_tower(kind: str, tmp_path: Path) -> None:
    model = write_two_towers(tmp_path / "model", kind)
    (tmp_path / "children").mkdir()
    with Children(model, tmp_path / "children") as children:
        run, whole = TinyRun(tmp_path / "broken", children), TinyRun(tmp_path / "whole", children)
        for each in (run, whole):
            write(each, "embed")
        ended = whole.start()
        assert ended.code == 3, ended.stderr
        draw = random.Random(kind)
        for _ in range(KILLS):
            run.killed_at(Point("at random", RECORD, when=draw.choice(["before", "after"]), nth=draw.randint(1, 5)))
        run.killed_at(Point("in the tower", ("mlx_bulk.runner.vision.two_towers:ImageTower.features",), when="after"))
        ended = run.start()
        assert ended.code == 3, ended.stderr
        assert parts(run.path) == parts(whole.path)
        rows = [row for batch in read_results(run.path, ["row"]) for row in batch.column("row").to_pylist()]
        assert rows == [row for row in range(ROWS) if row != 9]
        assert run.verify().exit_code == 3
