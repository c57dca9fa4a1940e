"""Pictures that fail between their reading and the model, by command: their rows are errors, others are done, a retry mends them."""

import json
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from ..jobs.support.bench import Bench
from ..vision_folders import drawn, picture_bytes, write_vision_model

pytestmark = pytest.mark.oracle
PROMPT = {"user": "{{ q }}", "images": "image"}
JOBS: dict[str, dict[str, Any]] = {
    "generate": {"sampling": {"max_tokens": 3, "temperature": 1.0, "n": 2}},
    "score": {"job": "score", "sampling": {}, "score": {"completion": " a dog"}},
    "rollout": {
        "job": "rollout",
        "sampling": {"max_tokens": 3, "temperature": 1.0, "n": 2},
        "rewards": [{"fn": "regex", "args": {"pattern": "e"}}],
    },
}


@pytest.fixture(scope="module", name="model")
def a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2_vl")
    write_vision_model(folder, "qwen2_vl")
    return folder


@pytest.mark.parametrize("job", JOBS)
def test_rows_of_pictures_that_fail_are_errors_and_the_others_are_done(
    job: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, model)
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(picture_bytes(drawn(30 + 30 * i, 40, i)))
    first = (tmp_path / "0.png").read_bytes()
    rows = [{"q": f"What is {i}?", "image": None if i in (5, 7) else f"{i % 4}.png"} for i in range(8)]
    sections: dict[str, Any] = {"prompt": PROMPT, "batch": {"deterministic": True, "rows": 4}, **JOBS[job]}
    if job == "score":
        del sections["sampling"]
    start = bench.score if job == "score" else bench.run
    sections.pop("job") if job == "score" else None
    whole = start(rows=rows, **sections)
    assert whole.code == 0, whole.stderr
    expected = {json.dumps(record) for record in whole.records}
    models = import_module("mlx_vlm.models.qwen2_vl.qwen2_vl")
    real, calls = models.Model.get_input_embeddings, count()

    def fails(*arguments: Any, **named: Any) -> Any:
        """The tower fails on the first picture, makes NaN of the second, and meanwhile the file of the smallest has changed."""
        (tmp_path / "0.png").write_bytes(picture_bytes(drawn(50, 50)))
        call = next(calls)
        if call == 0:
            raise AttributeError("NoneType has no attribute cu_seqlens")
        made = real(*arguments, **named)
        if call == 1:
            made.inputs_embeds = made.inputs_embeds * mx.array(float("nan"))
        return made

    with monkeypatch.context() as patch:
        patch.setattr(models.Model, "get_input_embeddings", fails)
        broken = start("--overwrite", rows=rows, **sections)
    assert broken.code == 3, broken.stderr
    assert {error["stage"] for error in broken.errors} == {"image"}
    messages = {error["message"].partition(" (/")[0] for error in broken.errors}
    for part in ("0.png changed while the run read it; put it back as it was", "has no attribute cu_seqlens", "are NaN or infinite"):
        assert sum(part in message for message in messages) == 1, messages
    done = {json.dumps(record) for record in broken.records}
    assert done < expected
    lost = {error["row"] for error in broken.errors}
    assert sorted({*lost, *(record["row"] for record in broken.records)}) == list(range(8))
    assert not lost & {5, 7}
    (tmp_path / "0.png").write_bytes(first)
    again = start("--retry-errors", rows=rows, **sections)
    assert again.code == 0, again.stderr
    assert {json.dumps(record) for record in again.records} == expected


@pytest.mark.parametrize("policy", ["error", "truncate_left"])
@pytest.mark.parametrize("job", ["generate", "score"])
def test_a_prompt_with_pictures_that_is_too_long_is_not_advised_to_be_cut(job: str, policy: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture_bytes(drawn(60, 40)))
    rows = [{"q": "What?", "image": "a.png"}, {"q": "a word " * 5000, "image": "a.png"}]
    bench, prompt = Bench(tmp_path, model), {**PROMPT, "too_long": policy}
    done = bench.score(rows=rows, prompt=prompt, score={"completion": " a"}) if job == "score" else bench.run(rows=rows, prompt=prompt)
    assert done.code == 3, done.stderr
    [error] = done.errors
    assert (error["row"], error["stage"]) == (1, "too_long")
    assert "a prompt with pictures is never cut" in error["message"]
    assert "truncate" not in error["message"]
    assert ("2 of them of 1 picture" if job == "generate" else "with 1 picture") in error["message"]
