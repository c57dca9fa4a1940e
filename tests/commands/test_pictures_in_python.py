"""A vision model in this process: chats with pictures are answered as a run of the same rows answers them."""

import json
from pathlib import Path
from typing import Any

import mlx_bulk
import numpy as np
import pytest
from PIL import Image

from ..jobs.support.bench import Bench
from ..picture_embedders import ROWS, write_picture_embedder, write_picture_rows
from ..vision_folders import data_url, drawn, picture_bytes, write_vision_model

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", name="picture_model")
def a_picture_model(tmp_path_factory: pytest.TempPathFactory) -> mlx_bulk.Model:
    folder = tmp_path_factory.mktemp("model")
    write_vision_model(folder, "qwen2_vl")
    return mlx_bulk.load(folder, images=True)


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


def test_paths_and_images_of_pillow_are_as_good_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vision_model(tmp_path / "model", "qwen2_vl")
    turned = Image.Exif()
    turned[0x0112] = 6
    (tmp_path / "a.png").write_bytes(picture_bytes(drawn(60, 40), exif=turned))
    clear = Image.new("RGBA", (40, 80), (200, 10, 10, 128))
    clear.save(tmp_path / "b.png")
    monkeypatch.chdir(tmp_path)
    files: list[Any] = ["a.png", Path("a.png"), (tmp_path / "a.png").resolve(), Image.open("a.png"), "b.png", clear]
    pictures = [*files, np.zeros((4, 4, 3)), Image.new("1", (1 << 15, 1 << 15))]
    model = mlx_bulk.load(tmp_path / "model", images=True)
    chats = [[{"role": "user", "content": [{"type": "image", "image": each}, {"type": "text", "text": "What?"}]}] for each in pictures]
    answers = model.chat(chats, max_tokens=3, temperature=0.0, ignore_eos=True)
    found = [answer.outputs[0].logprobs for answer in answers[: len(files)]]
    for picture, same in ((0, 1), (0, 2), (0, 3), (4, 5)):
        assert answers[same].outputs[0].ids.tolist() == answers[picture].outputs[0].ids.tolist()
        np.testing.assert_allclose(found[same], found[picture], rtol=0, atol=1e-4)  # batches of other shapes
    said = [answer.error.message for answer in answers if answer.error]
    assert len(said) == 2
    assert "messages[0].content[0]: found a value of the type ndarray; expected a picture: a path, bytes" in said[0]
    assert "the picture has 1,073,741,824 pixels" in said[1]
    vectors = mlx_bulk.load_embedder(tmp_path / "model", images=True, pooling="lasttoken").embed([{"image": each} for each in files])
    assert np.abs(vectors[1:4] - vectors[0]).max() <= 1e-5
    assert np.abs(vectors[5] - vectors[4]).max() <= 1e-5
    assert np.abs(vectors[4] - vectors[0]).max() > 1e-3


@pytest.mark.parametrize("image", ["/etc/passwd", "../x.png", Path("../x.png"), "https://example.org/a.png", 7, None])
def test_what_is_no_picture_is_said_in_words_of_python(picture_model: mlx_bulk.Model, image: object) -> None:
    content = [{"type": "image", "image": image}, {"type": "text", "text": "What?"}]
    [answer] = picture_model.chat([[{"role": "user", "content": content}]], max_tokens=1)
    assert answer.error is not None
    assert answer.error.stage == "image"
    for word in ("data.fetch", "prompt.images", "column", "the input"):
        assert word not in answer.error.message


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
