"""A vision model in this process: chats with pictures are answered as a run of the same rows answers them."""

import json
from pathlib import Path
from typing import Any

import mlx_bulk
import numpy as np
import pytest

from ..jobs.support.bench import Bench
from ..picture_embedders import ROWS, write_picture_embedder, write_picture_rows
from ..vision_folders import data_url, drawn, picture_bytes, write_vision_model

pytestmark = pytest.mark.oracle


def test_chats_with_pictures_are_those_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vision_model(tmp_path / "model", "qwen2_vl")
    (tmp_path / "a.png").write_bytes(picture_bytes(drawn(60, 40)))
    other = data_url(picture_bytes(drawn(33, 91, 2)))
    contents: list[Any] = [
        [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}],
        [{"type": "image_url", "image_url": {"url": other}}, {"type": "text", "text": "And this?"}],
        "Nothing?",
        [{"type": "image", "image": "gone.png"}],
    ]
    chats = [[{"role": "user", "content": content}] for content in contents]
    rows = [{"m": json.dumps(chat)} for chat in chats]
    sampling = {"max_tokens": 5, "temperature": 0.0, "ignore_eos": True}
    done = Bench(tmp_path, tmp_path / "model").run(rows=rows, prompt={"messages": "m"}, sampling=sampling)
    monkeypatch.chdir(tmp_path)
    model = mlx_bulk.load(tmp_path / "model", images=True)
    answers = model.chat(chats, max_tokens=5, temperature=0.0, ignore_eos=True)
    assert [error["row"] for error in done.errors] == [3]
    assert answers[3].error is not None
    assert "gone.png is not there" in answers[3].error.message
    for answer, record in zip(answers[:3], done.records, strict=True):
        assert answer.prompt_ids.tolist() == record["prompt_ids"]
        assert answer.outputs[0].ids.tolist() == record["completion_ids"]
        assert answer.outputs[0].logprobs.tolist() == pytest.approx(record["logprobs"], abs=1e-4)
    (plain,), (same,) = mlx_bulk.load(tmp_path / "model").score(["a text"]), model.score(["a text"])
    assert same.sum_logprob == pytest.approx(plain.sum_logprob, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("messages", [True, False])
def test_vectors_of_texts_and_pictures_are_those_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: bool) -> None:
    folder = write_picture_embedder(tmp_path / "model", "qwen3_vl", messages=messages)
    write_picture_rows(tmp_path)
    prompt, output = {"user": "{{ t or '' }}", "images": "image"}, {"path": str(tmp_path / "run")}
    mlx_bulk.run({"job": "embed", "model": str(folder), "data": str(tmp_path / "rows.jsonl"), "prompt": prompt, "output": output})
    expected = [one["embedding"] for one in mlx_bulk.results(tmp_path / "run").to_pylist()]
    monkeypatch.chdir(tmp_path)
    embedder = mlx_bulk.load_embedder(folder, images=True)
    inputs = [row["t"] if not row["image"] else {"text": row["t"], "image": row["image"]} for row in ROWS]
    found = embedder.embed([*inputs, {"image": (tmp_path / "tall.png").read_bytes()}, {"image": "gone.png"}], on_error="quarantine")
    assert np.abs(found[:-2] - np.array(expected)).max() <= 1e-5
    assert np.abs(found[-2] - np.array(expected)[1]).max() <= 1e-5
    assert np.isnan(found[-1]).all()
    with pytest.raises(TypeError, match=r"texts\[0\]: found the keys picture; expected a string, or a mapping with text, image or both"):
        embedder.embed([{"picture": "tall.png"}])
    with pytest.raises(TypeError, match=r"texts\[0\]: found dict; expected a string"):
        mlx_bulk.load_embedder(folder).embed([{"image": "tall.png"}])
