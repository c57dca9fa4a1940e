"""Runs of embedding jobs with CLIP and SigLIP, by command: rows that are a text or a picture, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk import load_embedder, results
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.core.images import PromptImage
from mlx_bulk.runner.vision.features import ImageFeatures
from mlx_bulk.runner.vision.two_towers import ImageTower
from numpy.typing import NDArray
from PIL import Image

from ..jobs.support.bench import table_of
from ..picture_embedders import PICTURES, write_picture_rows
from ..sentence_folders import write_modules
from ..two_tower_checkpoints import Theirs, write_two_towers

KINDS = ["clip", "siglip"]
# Of a number of a unit vector, in float32: sums in another order.
CLOSE = 1e-5
COSINE = 0.99999
Record = dict[str, Any]
Floats = NDArray[np.float32]
LONG = "the small green house on a red day with rain and night and cats and dogs and a photo of rain"
ROWS: list[Record] = [
    {"t": None, "image": "wide.png"},
    {"t": "a photo of two cats", "image": None},
    {"t": "Dogs", "image": None},
    {"t": LONG, "image": []},
    {"t": "rain", "image": None},
    {"t": None, "image": "tall.png"},
    {"t": " ", "image": ["small.png"]},
    {"t": None, "image": "wide.png"},
]
BOTH: Record = {"text": "{{ t or '' }}", "images": "image"}


def run(root: Path, model: Path, name: str = "run", code: int = 0, **sections: Any) -> list[Record]:
    """Runs a job over ``root``'s rows; returns its records."""
    command(root, model, "run", name, code, **sections)
    return results(root / name).to_pylist()


def command(root: Path, model: Path, command: str, name: str = "run", code: int = 0, **sections: Any) -> str:
    """Gives a command with a job over ``root``'s rows; returns what it says."""
    config: Record = {
        "job": "embed",
        "model": {"path": str(model)},
        "data": {"path": str(root / "rows.jsonl")},
        "prompt": BOTH,
        "output": {"path": str(root / name)},
    }
    (root / f"{name}.yaml").write_text(yaml.safe_dump(config | sections))
    more = ["--no-supervised"] if command == "run" else []
    done = CliRunner().invoke(cli, [command, str(root / f"{name}.yaml"), *more])
    assert done.exit_code == code, done.output
    return done.output


def vectors(records: list[Record]) -> Floats:
    return np.array([one["embedding"] for one in records], np.float32)


def unit(found: Floats) -> Floats:
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def expected(model: Path, rows: list[Record]) -> Floats:
    """transformers' vectors of rows, each alone."""
    theirs = Theirs(model)
    named = [row["image"][0] if isinstance(row["image"], list) and row["image"] else row["image"] for row in rows]
    rows = [{**row, "image": name} for row, name in zip(rows, named, strict=True)]
    return np.stack([theirs.of_picture(PICTURES[row["image"]]) if row["image"] else theirs.of_text(row["t"]) for row in rows])


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model = write_two_towers(tmp_path / "model", kind)
    write_picture_rows(tmp_path, ROWS)
    theirs = expected(model, ROWS)
    assert np.abs(unit(theirs) - unit(theirs)[0]).max(axis=1)[1:-1].min() > 0.1
    found = run(tmp_path, model)
    alone = run(tmp_path, model, "alone", batch={"rows": 1})
    for records in (found, alone):
        ours = vectors(records)
        assert np.abs(ours - theirs).max() <= CLOSE * np.linalg.norm(theirs, axis=1).min()
        assert (unit(ours) * unit(theirs)).sum(axis=1).min() >= COSINE
        assert [one["truncated"] for one in records] == [False, False, False, True, *[False] * 4]
    assert np.abs(vectors(run(tmp_path, model, "unit", embed={"normalize": True})) - unit(theirs)).max() <= CLOSE


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_cannot_be_done_cost_themselves_alone_and_a_picture_is_encoded_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_two_towers(tmp_path / "model", kind)
    bad: list[Record] = [
        {"t": "cats", "image": "wide.png"},
        {"t": None, "image": ["wide.png", "tall.png"]},
        {"t": None, "image": None},
        {"t": None, "image": "gone.png"},
        {"t": None, "image": "cut.png"},
        {"t": None, "image": "thin.png"},
    ]
    write_picture_rows(tmp_path, ROWS + bad)
    (tmp_path / "cut.png").write_bytes((tmp_path / "wide.png").read_bytes()[:200])
    Image.new("RGB", (40_000, 1)).save(tmp_path / "thin.png")
    seen: list[str] = []
    features = ImageTower.features

    def noted(tower: ImageTower, image: PromptImage) -> ImageFeatures:
        seen.append(image.digest)
        return features(tower, image)

    monkeypatch.setattr(ImageTower, "features", noted)
    found = run(tmp_path, model, code=3)
    thin = kind == "siglip"  # which makes squares of all pictures
    assert [one["row"] for one in found] == [*range(8), *([13] if thin else [])]
    assert len(seen) == len(set(seen)) == 3 + thin
    ours = vectors(found)
    assert np.array_equal(ours[0], ours[7])
    errors = table_of(tmp_path / "run" / "errors").to_pylist()
    said = {one["row"]: (one["stage"], one["message"]) for one in errors}
    assert [said[row][0] for row in sorted(said)] == ["image", "image", "tokenize", *["image"] * (2 + (not thin))]
    assert "the row has a picture and a text, and this model makes a vector of one alone" in said[8][1]
    assert "the row has 2 pictures, and this model makes a vector of one" in said[9][1]
    assert "nothing to embed: the row has no picture and no text" in said[10][1]
    assert thin or "too long and thin for this model" in said[13][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_depend_neither_on_memory_for_vectors_nor_on_where_a_run_stopped(tmp_path: Path, kind: str) -> None:
    model = write_two_towers(tmp_path / "model", kind)
    write_picture_rows(tmp_path, ROWS * 2)
    batch: Record = {"deterministic": True, "rows": 4, "rows_per_shard": 4}
    data = str(tmp_path / "rows.jsonl")
    whole = vectors(run(tmp_path, model, "whole", batch=batch))
    none = vectors(run(tmp_path, model, "none", batch={**batch, "image_memory": 0}))
    assert len(run(tmp_path, model, "part", batch=batch, data={"path": data, "limit": 6})) == 6
    resumed = vectors(run(tmp_path, model, "part", batch=batch, data={"path": data}))
    assert np.array_equal(whole, none)
    assert np.array_equal(whole, resumed)
    quick = vectors(run(tmp_path, model, "quick"))
    assert np.abs(quick - whole).max() <= CLOSE * np.linalg.norm(whole, axis=1).min()


def test_python_gives_the_vectors_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_two_towers(tmp_path / "model", "clip")
    write_picture_rows(tmp_path, ROWS)
    monkeypatch.chdir(tmp_path)
    embedder = load_embedder(model, images=True, normalize=True)
    found = embedder.embed(["a photo of two cats", {"image": "wide.png"}, {"text": LONG}])
    theirs = vectors(run(tmp_path, model, embed={"normalize": True}))
    assert embedder.dimensions == 24
    assert np.abs(found - theirs[[1, 0, 3]]).max() <= CLOSE
    texts = load_embedder(model, normalize=True)
    assert np.abs(texts.embed(["a photo of two cats"]) - theirs[1]).max() <= CLOSE


@pytest.mark.slow
@pytest.mark.draws
def test_a_run_can_be_planned_checked_and_shown(tmp_path: Path) -> None:
    model = write_two_towers(tmp_path / "model", "clip")
    write_picture_rows(tmp_path, ROWS)
    planned = command(tmp_path, model, "plan")
    assert "4 in prompts, 68 of the tokens above: 17 each; 3 distinct pictures" in planned.replace("\n", " "), planned
    run(tmp_path, model)
    verified = CliRunner().invoke(cli, ["verify", "--rescore", str(tmp_path / "run")])
    assert verified.exit_code == 0, verified.output
    assert f"{len(ROWS)} rows" in verified.output, verified.output
    assert "data:image/jpeg;base64" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("normalized", [False, True])
def test_the_folder_of_sentence_transformers_gives_the_same_vectors(tmp_path: Path, normalized: bool) -> None:
    plain, folder = write_two_towers(tmp_path / "model", "clip"), tmp_path / "sentence"
    write_two_towers(folder / "0_CLIPModel", "clip")
    write_modules(folder, *([("Normalize", {})] if normalized else []))
    listed = json.loads((folder / "modules.json").read_text())
    listed[0] |= {"path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (folder / "modules.json").write_text(json.dumps(listed))
    write_picture_rows(tmp_path, ROWS)
    found, theirs = vectors(run(tmp_path, folder, "sentence_run")), vectors(run(tmp_path, plain))
    assert np.abs(found - (unit(theirs) if normalized else theirs)).max() <= CLOSE


ALONE = "makes vectors of texts and pictures alone; set job: embed"
REFUSED: dict[str, tuple[Record, str]] = {
    "generate": (
        {"job": "generate", "prompt": {"text": "{{ t }}"}},
        ALONE,
    ),
    "a chat": (
        {"job": "generate", "prompt": {"user": "{{ t }}", "images": "image"}},
        ALONE,
    ),
    "pooling": ({"embed": {"pooling": "mean"}}, "embed.pooling: a model with two towers pools by itself; leave it out"),
    "system": ({"prompt": {"user": "{{ t }}", "system": "Look."}}, "prompt.system: clip reads a text or a picture, and no chats"),
    "classify": (
        {"job": "classify", "prompt": {"text": "{{ t }}"}},
        ALONE,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_model_does_not_do_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    sections, expected_text = REFUSED[case]
    model = write_two_towers(tmp_path / "model", "clip")
    write_picture_rows(tmp_path, ROWS[:2])
    said = command(tmp_path, model, "run", code=5 if "job" in sections else 2, **sections)
    assert expected_text in said
    assert len(said.strip().splitlines()) == 1, said


def test_pixels_of_another_size_than_the_towers_are_refused(tmp_path: Path) -> None:
    model = write_two_towers(tmp_path / "model", "siglip")
    settings = json.loads((model / "preprocessor_config.json").read_text())
    (model / "preprocessor_config.json").write_text(json.dumps(settings | {"size": {"height": 32, "width": 32}}))
    write_picture_rows(tmp_path, ROWS)
    said = command(tmp_path, model, "run", code=5)
    assert "makes pixels of the shape [1, 3, 32, 32], and the vision tower of its config.json reads [1, 3, 30, 30]" in said
