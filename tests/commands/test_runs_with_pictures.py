"""Whole runs on rows with pictures: completions and their logprobs are transformers', given the same messages and pictures."""

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from numpy.typing import NDArray
from PIL import Image

from ..jobs.support.bench import Bench
from ..runner.images.test_processors import theirs
from ..vision_configs import FAMILIES
from ..vision_folders import QWEN_TEMPLATE, data_url, drawn, picture_bytes, write_vision_model

pytestmark = pytest.mark.oracle
BOUND = 1e-4  # float32: batches, chunks and caches add in another order than one call of a row alone
A, B = picture_bytes(drawn(60, 40)), picture_bytes(drawn(33, 91, 2))
ROWS: list[dict[str, Any]] = [
    {"q": "Say one", "image": ["a.png"]},
    {"q": "Say two, and then more", "image": ["b.png", data_url(A)]},
    {"q": "Say three", "image": []},
    {"q": "Say four", "image": ["cut.png"]},
    {"q": "Five", "image": ["a.png"]},
]
PICTURES = [[A], [B, A], [], [], [A]]


def write_pictures(folder: Path) -> None:
    for name, data in (("a.png", A), ("b.png", B), ("cut.png", A[:200])):
        (folder / name).write_bytes(data)


class Truth:
    """transformers' model and processor of a checkpoint."""

    def __init__(self, folder: Path, kind: str):
        self.model = write_vision_model(folder, kind)
        self.processor = theirs(folder, kind)
        self._nested = kind == "llava_onevision"  # pictures in a list a prompt, by which it knows how many that has
        if self._nested:
            self.processor.vision_aspect_ratio = self.model.config.vision_aspect_ratio

    def logprobs(self, text: str, pictures: list[bytes], completion: list[int]) -> NDArray[np.float64]:
        """Log-softmax [N, V] before each token of a completion, of one call on the row alone."""
        import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)

        images = [Image.open(BytesIO(data)) for data in pictures]
        shown = [images] if self._nested and images else images or None
        made = self.processor(text=[text], images=shown, add_special_tokens=False, return_tensors="pt")
        more = torch.tensor([completion])
        for name in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"):
            if name in made:
                fill = more if name == "input_ids" else torch.full_like(more, int(name == "attention_mask"))
                made[name] = torch.cat([made[name], fill.to(made[name].dtype)], -1)
        with torch.no_grad():
            logits = self.model(**made).logits[0].double()
        return torch.log_softmax(logits, -1)[-len(completion) - 1 : -1].numpy()


@pytest.mark.parametrize("kind", FAMILIES)
def test_completions_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    truth = Truth(tmp_path / "model", kind)
    write_pictures(tmp_path)
    bench = Bench(tmp_path, tmp_path / "model")
    prompt = {"user": "{{ q }}", "images": "image"}
    done = bench.run(rows=ROWS, prompt=prompt, sampling={"max_tokens": 6, "temperature": 0, "ignore_eos": True})
    assert done.code == 3, done.stderr
    [error] = done.errors
    assert (error["row"], error["stage"]) == (3, "image")
    assert "image[0]: cut.png: the picture is damaged or cut off" in error["message"]
    records = {record["row"]: record for record in done.records}
    assert sorted(records) == [0, 1, 2, 4]
    for row, record in records.items():
        content = [{"type": "image"}] * len(PICTURES[row]) + [{"type": "text", "text": ROWS[row]["q"]}]
        text = truth.processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        if PICTURES[row]:
            assert record["prompt"] == text
        expected = truth.logprobs(text, PICTURES[row], record["completion_ids"])
        own = expected[np.arange(6), record["completion_ids"]]
        np.testing.assert_allclose(record["logprobs"], own, rtol=0, atol=BOUND)
        assert (expected.max(-1) - own).max() < BOUND, "each token is the most likely one"
    planned = CliRunner().invoke(cli, ["plan", str(tmp_path / "config.yaml"), "--json"]).stdout
    plan = json.loads(planned[planned.index("{") :])
    assert plan["pictures"] == 4
    assert 4 <= plan["picture_tokens"] <= plan["tokens"]["sum"]
    assert 0 < plan["tower_bytes"] < plan["weight_bytes"]
    for way in ("--rescore", "--replay"):
        verified = CliRunner().invoke(cli, ["verify", str(done.output), way])
        assert verified.exit_code == done.code, verified.output
        assert "within float32's bounds" in verified.output
    again = bench.run(rows=ROWS, prompt=prompt, sampling={"max_tokens": 6, "temperature": 0, "ignore_eos": True})
    assert again.last_line.startswith("complete already: 5 of 5 rows, 1 quarantined")
    (tmp_path / "b.png").write_bytes(A)
    changed = bench.run(rows=ROWS, prompt=prompt, sampling={"max_tokens": 6, "temperature": 0, "ignore_eos": True})
    assert changed.code == 4
    assert "a picture that one of rows 0 to 4 names is new, changed or gone" in changed.stderr


def test_scores_chats_and_lines_of_a_batch_file_with_pictures(tmp_path: Path) -> None:
    truth = Truth(tmp_path / "model", "qwen2_vl")
    write_pictures(tmp_path)
    bench = Bench(tmp_path, tmp_path / "model")
    parts = [{"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}, {"type": "text", "text": "What?"}]
    rows: list[dict[str, Any]] = [
        {"m": [{"role": "user", "content": parts}], "a": " yes"},
        {"m": [{"role": "user", "content": "What?"}], "a": " no <|image_pad|>"},
    ]
    scored = bench.score(rows=rows, prompt={"messages": "m"}, score={"completion": "{{ a }}"})
    assert scored.code == 0, scored.stderr
    for record, pictures in zip(scored.records, ([A], []), strict=True):
        completion = [i for i, there in zip(record["token_ids"], record["scored"], strict=True) if there]
        content = [{"type": "image"}] * len(pictures) + [{"type": "text", "text": "What?"}]
        text = truth.processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        expected = truth.logprobs(text.rstrip(), pictures, completion)[np.arange(len(completion)), completion]
        found = [value for value in record["token_logprobs"] if value is not None]
        np.testing.assert_allclose(found, expected, rtol=0, atol=BOUND)
    body = {"model": "x", "messages": rows[0]["m"], "max_tokens": 4, "temperature": 0}
    lines = [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}]
    answered = bench.run("--overwrite", rows=lines, data={"format": "openai"}, prompt={})
    assert answered.code == 0, answered.stderr
    [record] = answered.records
    assert record["prompt"].startswith("<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?")


def test_whole_chats_with_pictures_are_scored_as_transformers_does(tmp_path: Path) -> None:
    truth = Truth(tmp_path / "model", "qwen2_vl")
    write_pictures(tmp_path)
    begin, body, end = re.split(r"(?<=role }}\n)|(?=<\|im_end\|>)", QWEN_TEMPLATE)
    asked = "{% if message.role == 'assistant' %}"
    marked = f"{begin}{asked}{{% generation %}}{body}{{% endgeneration %}}{{% else %}}{body}{{% endif %}}{end}"
    rows: list[dict[str, Any]] = [
        {
            "m": [
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
                {"role": "assistant", "content": "A dog"},
            ]
        },
        {"m": [{"role": "user", "content": [{"type": "text", "text": "What?"}]}, {"role": "assistant", "content": [{"type": "image"}]}]},
        {"m": [{"role": "user", "content": [{"type": "text", "text": "a word " * 2000}]}, {"role": "assistant", "content": "no"}]},
    ]
    for row in rows:
        row["pictures"] = ["a.png"]
    bench, prompt = Bench(tmp_path, tmp_path / "model"), {"chat_template": marked, "images": "pictures"}
    done = bench.score(rows=rows, prompt=prompt, score={"messages": "m"})
    assert done.code == 3, done.stderr
    [record] = done.records
    completion = [i for i, there in zip(record["token_ids"], record["scored"], strict=True) if there]
    text = truth.processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}], tokenize=False, add_generation_prompt=True
    )
    expected = truth.logprobs(text, [A], completion)[np.arange(len(completion)), completion]
    found = [value for value in record["token_logprobs"] if value is not None]
    np.testing.assert_allclose(found, expected, rtol=0, atol=BOUND)
    assert max(record["token_ids"]) < 1 << 24
    assert {(error["row"], error["stage"]) for error in done.errors} == {(1, "image"), (2, "too_long")}
    (tmp_path / "a.png").write_bytes(B)
    assert bench.score(rows=rows, prompt=prompt, score={"messages": "m"}).code == 4
