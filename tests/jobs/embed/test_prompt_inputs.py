"""Tests prompts as embedders of texts and pictures read them: chats or raw texts, the prompt's place, what is too long."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.configs.embed import EmbedConfig
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.embed.embed import EmbedJob
from mlx_bulk.jobs.embed.prompt_inputs import PromptInputs
from mlx_bulk.jobs.embed.text_inputs import TextInputs
from mlx_bulk.runner.core.errors import DataError, RowError
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.images.row_pictures import open_pictures
from mlx_bulk.runner.models.checkpoint import Checkpoint
from mlx_bulk.runner.pipeline.job import Parts
from mlx_bulk.runner.pooling.sentence_folder import SentenceFolder
from mlx_bulk.runner.text.tokenizer import load_tokenizer

from ...vision_folders import data_url, drawn, picture_bytes, write_vision_folder

COLUMNS = ["t", "image", "chat"]
PICTURE = picture_bytes(drawn(60, 40))
TEXT_AND_IMAGE = {"text": "{{ t or '' }}", "images": "image"}


class Bench:
    """The tokenizer and the image processor of a tiny Qwen2-VL, around one config."""

    def __init__(self, folder: Path, how: dict[str, Any], *, messages: bool, said: dict[str, Any] | None = None, **texts: Any):
        write_vision_folder(folder)
        values = {"job": "embed", "model": str(folder), "data": "rows.jsonl", "prompt": how, "output": "run"}
        config = load_config(values)
        assert isinstance(config, EmbedConfig)
        model = json.loads((folder / "config.json").read_text())
        self.tokenizer = load_tokenizer(folder, None, {}, False)
        pictures = open_pictures(config, folder, model, self.tokenizer, pa.schema([(name, pa.string()) for name in COLUMNS]))
        checkpoint, size = Checkpoint(folder, None, model), len(self.tokenizer.hf)
        parts = Parts(config, COLUMNS, None, self.tokenizer, None, None, size, "qwen2_vl", frozenset(), checkpoint, pictures=pictures)
        sentence = SentenceFolder(folder, folder, messages=messages, chat_variables=said or {})
        self.parts, self.inputs = parts, PromptInputs(parts, TextInputs(self.tokenizer, **texts), sentence)

    def shown(self, t: str | None, images: int = 0, chat: Any = None) -> str:
        """A row's input as text, with one placeholder for each token of a picture."""
        row = Row(0, "0", {"t": t, "image": [PICTURE] * images, "chat": chat})
        request = self.inputs.request(row)
        [one] = request.inputs
        assert len(request.images) == images
        assert sum(image.tokens for image in request.images) == np.count_nonzero(one.ids >= 1 << 24)
        text = self.tokenizer.hf.decode(self.parts.plain(one.ids)).removeprefix("<|endoftext|>")  # this tokenizer's own, before each text
        return text.replace("<|image_pad|>" * request.images[0].tokens, "[]") if images else text


def test_rows_become_turns_of_the_user_where_the_models_files_say_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "model", TEXT_AND_IMAGE, messages=True, prompt="Represent it.")
    system = "<|im_start|>system\nRepresent it.<|im_end|>\n<|im_start|>user\n"
    place = "<|vision_start|>[]<|vision_end|>"
    assert bench.shown("a dog") == f"{system}a dog<|im_end|>\n"
    assert bench.shown("a dog", 1) == f"{system}{place}a dog<|im_end|>\n"
    assert bench.shown(None, 2) == f"{system}{place}{place}<|im_end|>\n"


def test_a_batch_line_is_read_as_a_row_of_the_same_text(tmp_path: Path) -> None:
    for name, messages in (("chats", True), ("texts", False)):
        bench = Bench(tmp_path / name, {"text": "{{ t }}"}, messages=messages, prompt="Represent it.")
        [row] = bench.inputs.request(Row(0, "0", {"t": "a dog", "image": [], "chat": None})).inputs
        line, cut = bench.inputs.text("a dog")
        assert (line.ids.tolist(), line.start, cut) == (row.ids.tolist(), row.start, False)


def test_the_models_files_say_what_its_template_gets(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "model", TEXT_AND_IMAGE, messages=True, said={"add_generation_prompt": True})
    assert bench.shown("a dog", 1).endswith("a dog<|im_end|>\n<|im_start|>assistant\n")


def test_raw_texts_stand_behind_the_prompt_and_say_where_pictures_go(tmp_path: Path) -> None:
    raw = {"text": "{% if image %}<|image_pad|>{% endif %}: {{ t }}", "images": "image"}
    bench = Bench(tmp_path / "model", raw, messages=False, prompt="what is ")
    assert bench.shown("this", 1) == "what is []: this"
    assert bench.shown("this") == "what is : this"
    with pytest.raises(RowError, match=r"prompt\.text has 1 place for pictures"):
        bench.shown("this", 2)


def test_a_rows_own_system_turn_stands_in_the_place_of_the_prompt(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "model", {"messages": "chat"}, messages=False, prompt="Represent it.")
    user = {"role": "user", "content": "a dog"}
    end = "<|im_start|>user\na dog<|im_end|>\n<|im_start|>assistant\n"
    assert bench.shown(None, chat=[user]) == f"<|im_start|>system\nRepresent it.<|im_end|>\n{end}"
    assert bench.shown(None, chat=[{"role": "system", "content": "Sort it."}, user]) == f"<|im_start|>system\nSort it.<|im_end|>\n{end}"


def test_neither_chats_nor_prompts_with_pictures_are_cut(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "chat", TEXT_AND_IMAGE, messages=True, max_length=12)
    with pytest.raises(RowError, match=r"has \d+ tokens, of which 2 are of pictures, and the model takes 12; chats are never cut"):
        bench.shown("how many dogs and cats", 1)
    raw = Bench(tmp_path / "raw", {"text": "{{ t }}", "images": "image"}, messages=False, max_length=3)
    assert raw.shown("how many dogs and cats") == "how"


def test_a_length_that_the_config_sets_is_named_in_the_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "model", {"user": "{{ t }}", "images": "image"}, messages=False, max_length=12, own_length=True)
    with pytest.raises(RowError, match=r"2 are of pictures, and embed\.max_length is 12; raise it, or give smaller"):
        bench.shown("how many dogs and cats", 1)


def test_a_prefill_follows_a_picture_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "model", {"images": "image", "prefill": "{{ t }}<|endoftext|>"}, messages=False)
    turn = "<|im_start|>user\n<|vision_start|>[]<|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    assert bench.shown("so", 1) == f"{turn}so<|endoftext|>"
    bench = Bench(tmp_path / "unknown", {"images": "image", "prefill": "{{ tt }}"}, messages=False)
    with pytest.raises(DataError, match=r"prompt\.prefill"):
        EmbedJob.check(bench.inputs.config, COLUMNS)


@pytest.mark.parametrize(
    ("how", "messages"),
    [
        ({"images": "image"}, False),
        ({"images": "image", "prefill": "x"}, False),
        (TEXT_AND_IMAGE, True),
        (TEXT_AND_IMAGE, False),
        ({"user": "{{ t or '' }}", "images": "image", "system": "Represent it."}, False),
        ({"messages": "chat", "images": "image"}, False),
    ],
)
def test_a_row_with_neither_picture_nor_text_is_an_error(tmp_path: Path, how: dict[str, Any], messages: bool) -> None:
    bench = Bench(tmp_path / "model", how, messages=messages, prompt="" if "system" in how else "what is ")
    chat = [{"role": "user", "content": " "}]
    for images in ([], None):
        with pytest.raises(RowError, match="nothing to embed: the row has no picture and no text") as caught:
            bench.inputs.request(Row(0, "0", {"t": " ", "image": images, "chat": chat}))
        assert caught.value.stage == "tokenize"


def test_pictures_in_the_parts_of_a_chat_are_enough(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "model", {"messages": "chat", "images": "image"}, messages=False)
    part = {"type": "image", "url": data_url(PICTURE)}
    request = bench.inputs.request(Row(0, "0", {"t": None, "image": None, "chat": [{"role": "user", "content": [part]}]}))
    assert len(request.images) == 1


def test_a_chat_needs_a_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "model", {"images": "image"}, messages=False)
    monkeypatch.setattr(type(bench.tokenizer), "has_chat_template", False)
    with pytest.raises(ConfigError, match="no chat template, by which pictures and texts become one prompt; write"):
        PromptInputs(bench.parts, TextInputs(bench.tokenizer), bench.inputs.folder)
