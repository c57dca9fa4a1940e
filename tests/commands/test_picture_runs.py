"""Whole runs of rows with pictures, by command: results that no cache changes, a replay, a second scoring, scores of what was written."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk import results
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.core import shard_layout
from mlx_bulk.runner.core.requests import AnyRequest
from mlx_bulk.runner.pipeline.io_threads import IOThreads

from ..vision_folders import drawn, picture_bytes, write_vision_model

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
ROWS = 6


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"], name="folder")
def a_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, pictures, and rows that name them; the last row has none."""
    folder = tmp_path_factory.mktemp(request.param)
    write_vision_model(folder / "model", request.param)
    (folder / "data").mkdir()
    rows: list[dict[str, Any]] = [{"q": f"what is in picture {i}?", "image": f"{i % 2}.png", "said": "a dog"} for i in range(ROWS)]
    for i in range(2):
        (folder / "data" / f"{i}.png").write_bytes(picture_bytes(drawn(40 + 30 * i, 40, i)))
    rows.append({"q": "nothing?", "image": None, "said": "no"})
    (folder / "data" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def command(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def run(folder: Path, name: str, **sections: Any) -> list[dict[str, Any]]:
    """Runs a job over the folder's rows; returns its records."""
    config = {
        "job": "generate",
        "model": {"path": str(folder / "model")},
        "data": {"path": str(folder / "data" / "rows.jsonl")},
        "prompt": {"user": "{{ q }}", "images": "image"},
        "output": {"path": str(folder / name)},
        **sections,
    }
    if config["job"] == "generate":
        config |= {"sampling": {"max_tokens": 6, "temperature": 1.0}, "logprobs": {"prompt": True}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    command("run", str(folder / f"{name}.yaml"), "--no-supervised")
    return results(folder / name).to_pylist()


def test_bytes_do_not_depend_on_the_memory_for_features(folder: Path) -> None:
    most, none = (run(folder, f"kept {gb}", batch={"deterministic": True, "rows_per_shard": 3, "image_memory": gb}) for gb in (1.0, 0.0))
    assert most == none
    assert len(most) == ROWS + 1
    placeholders = [
        [i for i, logprob in zip(one["prompt_ids"], one["prompt_logprobs"], strict=True) if logprob is None][1:] for one in most
    ]
    assert [len(set(ids)) for ids in placeholders] == [1] * ROWS + [0]
    assert all(max(one["prompt_ids"]) < 1 << 24 for one in most)


def test_fewer_rows_with_pictures_wait_for_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds several times the memory of a row of text."""
    sizes, next_window = list[int](), IOThreads.next_window

    def counted(threads: IOThreads, wait: bool) -> list[AnyRequest] | None:
        window = next_window(threads, wait)
        if window:
            sizes.append(len(window))
        return window

    monkeypatch.setattr(shard_layout, "PICTURE_ROWS", 4)
    monkeypatch.setattr(IOThreads, "next_window", counted)
    run(folder, "small windows", batch={"rows_per_shard": 2})
    assert sizes == [4, 3]


def test_a_run_is_replayed_and_scored_again(folder: Path) -> None:
    run(folder, "checked")
    replayed = command("verify", "--replay", str(folder / "checked"))
    assert f"replayed {ROWS + 1} records" in replayed
    assert "within float32's bounds" in replayed
    rescored = command("verify", "--rescore", str(folder / "checked"))
    assert f"rescored {ROWS + 1} records" in rescored
    assert "within float32's bounds" in rescored


def test_what_a_run_wrote_scores_as_it_was_sampled(folder: Path) -> None:
    said = run(folder, "said")
    rows = [one["input"] | {"said": one["completion"]} for one in said]
    (folder / "data" / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompt = {"user": "{{ q }}", "images": "image"}
    scores = run(
        folder, "scored", job="score", prompt=prompt, data={"path": str(folder / "data" / "said.jsonl")}, score={"completion": "{{ said }}"}
    )
    same = [(a, b) for a, b in zip(said, scores, strict=True) if b["token_ids"][-len(a["completion_ids"]) :] == a["completion_ids"]]
    assert same
    for one, score in same:
        assert score["token_logprobs"][-len(one["logprobs"]) :] == pytest.approx(one["logprobs"], abs=1e-4)


def test_a_reference_gives_rollouts_with_pictures_the_policys_own_logprobs(folder: Path) -> None:
    (folder / "rewards.py").write_text("def length(completions, **kwargs):\n    return [float(len(text)) for text in completions]\n")
    done = run(
        folder,
        "rolled out",
        job="rollout",
        sampling={"max_tokens": 5, "temperature": 1.0, "n": 2},
        policy={"reference": str(folder / "model")},
        rewards=[{"fn": f"{folder / 'rewards.py'}:length"}],
    )
    assert len(done) == 2 * (ROWS + 1)
    for one in done:  # the policy decoded, the reference read it in one pass
        assert one["ref_logprobs"] == pytest.approx(one["logprobs"], abs=1e-4)
