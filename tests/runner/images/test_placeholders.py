"""Prompts with pictures: where their ids stand, and text of rows that spells a placeholder."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import DataError, ModelError, RowError
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID
from mlx_bulk.runner.core.requests import Prompt
from mlx_bulk.runner.images import placeholders, processors
from mlx_bulk.runner.images.content_parts import listed_pictures
from mlx_bulk.runner.images.placeholders import PictureEncoder
from mlx_bulk.runner.images.processors import load_image_processor
from mlx_bulk.runner.images.sources import PictureSources
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from ...vision_folders import drawn, picture_bytes, write_vision_folder

PAD = "<|image_pad|>"


class Case:
    """A checkpoint's encoder, with a folder of pictures."""

    def __init__(self, folder: Path, kind: str = "qwen2_vl", template: str | None = None):
        self.folder = write_vision_folder(folder, kind)
        self.tokenizer: Tokenizer = load_tokenizer(self.folder, template, {}, False)
        self.config = json.loads((self.folder / "config.json").read_text())
        processor = load_image_processor(self.folder, self.config, self.tokenizer.hf)
        self.encoder = PictureEncoder(self.tokenizer, processor, PictureSources((self.folder.resolve(),), False), 1_000_000)
        self.placeholder = processor.placeholder

    def chat(self, messages: list[dict[str, Any]], images: object = None, prefill: str = "") -> Prompt:
        listed = listed_pictures(images, "images")
        return self.encoder.chat_text(messages, prefill, {}, "messages", listed, self.folder).prompt()

    def raw(self, template: str, columns: dict[str, Any], images: object = None) -> Prompt:
        from mlx_bulk.runner.templates.prompt_templates import compile_template

        render = compile_template(template, "prompt.text", list(columns))
        return self.encoder.raw_text(render, columns, listed_pictures(images, "images"), self.folder).prompt()

    def plain(self, prompt: Prompt) -> list[int]:
        return self.encoder.table.plain(prompt.ids).tolist()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("qwen"))


def user(*parts: object) -> list[dict[str, Any]]:
    kept = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": kept}]


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "image": data}


A, B = picture_bytes(drawn(60, 40)), picture_bytes(drawn(28, 84, shade=3))


def test_a_pictures_ids_stand_where_the_template_placed_it(qwen: Case) -> None:
    prompt = qwen.chat(user("See ", image(A), " and ", image(B), "."))
    first, second = prompt.images
    assert [first.grid, second.grid] == [(1, 1, 2), (1, 3, 1)]
    assert [first.tokens, second.tokens] == [2, 3]
    shown = f"See <|vision_start|>{PAD * 2}<|vision_end|> and <|vision_start|>{PAD * 3}<|vision_end|>."
    text = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    assert qwen.plain(prompt) == qwen.tokenizer.encode_text(text).ids.tolist()
    own = prompt.ids[prompt.ids >= FIRST_IMAGE_ID]
    np.testing.assert_array_equal(own, np.concatenate([first.ids, second.ids]))
    assert prompt.text == text.replace(PAD * 3, PAD).replace(PAD * 2, PAD)
    starts = prompt.offsets[prompt.ids >= FIRST_IMAGE_ID]
    assert {prompt.text[start : start + len(PAD)] for start in starts} == {PAD}
    after = prompt.offsets[np.flatnonzero(prompt.ids >= FIRST_IMAGE_ID)[-1] + 1 :]
    assert prompt.text[after[0] :].startswith("<|vision_end|>.")


def test_the_same_picture_has_the_same_ids_however_it_is_named(qwen: Case) -> None:
    (qwen.folder / "a.png").write_bytes(A)
    first = qwen.chat(user("One ", image(A)))
    second = qwen.chat(user({"type": "image_url", "image_url": {"url": "a.png"}}, "Two"))
    other = qwen.chat(user(image(B)))
    assert first.images[0] is second.images[0]
    assert not set(first.images[0].ids) & set(other.images[0].ids)


def test_pictures_of_the_column_fill_parts_or_come_first(qwen: Case) -> None:
    filled = qwen.chat(user("Before ", {"type": "image"}, " after"), A)
    assert "Before <|vision_start|>" in filled.text
    put_first = qwen.chat([{"role": "system", "content": "Short."}, {"role": "user", "content": "What?"}], [A, B])
    assert (
        f"Short.<|im_end|>\n<|im_start|>user\n<|vision_start|>{PAD}<|vision_end|><|vision_start|>{PAD}<|vision_end|>What?" in put_first.text
    )
    assert len(put_first.images) == 2
    mixed = qwen.chat(user({"type": "image"}, image(A), "x"), [B])
    assert [each.tokens for each in mixed.images] == [3, 2]


def test_a_part_with_its_picture_under_another_key_says_which_are_read(qwen: Case) -> None:
    said = r"messages has 1 part .* of its own: one has the keys type, img; the picture of a part is under image_url, .*, path or bytes"
    with pytest.raises(RowError, match=said):
        qwen.chat(user({"type": "image", "img": "a.png"}, "x"))


@pytest.mark.parametrize("images", [[], [A, B], [A, B, A]])
def test_more_or_fewer_pictures_than_parts(qwen: Case, images: list[bytes]) -> None:
    gives = f"prompt.images gives {len(images)} pictures" if images else "the row brings none beside its messages; put one into each part"
    with pytest.raises(RowError, match=rf"messages has 1 part of the type image .*{gives}") as caught:
        qwen.chat(user({"type": "image"}, "x"), images)
    assert caught.value.stage == "image"


def test_text_that_spells_a_placeholder_is_text(qwen: Case) -> None:
    prompt = qwen.chat(user(image(A), f"Say {PAD} twice: {PAD}"), prefill=f"It is {PAD}")
    assert len(prompt.images) == 1
    assert (prompt.ids >= FIRST_IMAGE_ID).sum() == 2
    assert qwen.placeholder not in prompt.ids.tolist()
    assert f"Say {PAD} twice: {PAD}<|im_end|>" in prompt.text
    assert prompt.text.endswith(f"It is {PAD}")
    plain = qwen.tokenizer.decode(prompt.ids[prompt.ids < FIRST_IMAGE_ID])
    assert f"Say {PAD} twice: {PAD}" in plain
    assert plain.endswith(f"It is {PAD}")
    spelled = qwen.chat([{"role": "user", "content": f"No picture, but {PAD}."}])
    assert qwen.placeholder not in spelled.ids.tolist()
    assert not spelled.images
    for at, start in enumerate(spelled.offsets.tolist()):  # offsets go on behind what is spelled
        piece = qwen.tokenizer.token_bytes(int(spelled.ids[at])).decode("utf-8", "replace")
        assert spelled.text.startswith(piece, start)


def test_a_chat_without_pictures_has_the_ids_that_it_always_had(qwen: Case) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is <|im_end|> é?"}]
    prompt, expected = qwen.chat(messages, prefill="It"), qwen.tokenizer.encode_chat(messages, "It")
    assert prompt.text == expected.text
    np.testing.assert_array_equal(prompt.ids, expected.ids)
    np.testing.assert_array_equal(prompt.offsets, expected.offsets)


def test_a_raw_prompt_places_pictures_itself(qwen: Case) -> None:
    template = "{{ q }} <|image_pad|> it shows"
    prompt = qwen.raw(template, {"q": f"Not {PAD}:"}, A)
    assert prompt.text == f"Not {PAD}: {PAD} it shows"
    assert len(prompt.images) == 1
    assert (prompt.ids >= FIRST_IMAGE_ID).sum() == 2
    assert qwen.placeholder not in prompt.ids.tolist()
    assert prompt.ids[0] == qwen.tokenizer.encode("Not").ids[0]
    cut = qwen.raw("{{ q | replace('<|image_pad|>', '') }}<|image_pad|>", {"q": f"Not {PAD}:"}, A)
    assert cut.text == f"Not :{PAD}"
    with pytest.raises(
        RowError,
        match=r"prompt.text has 0 places for pictures .*, but the row has 1 picture; write <\|image_pad\|> where .* prompt.user",
    ):
        qwen.raw("{{ q }}", {"q": PAD}, A)


@pytest.mark.parametrize(
    "cut", ["q[:20]", "q[3:16]", "q[-20:]", "q | truncate(30, true)", "q | upper | lower", "q | trim", "(q ~ q)[5:40]"]
)
def test_what_a_row_spells_is_text_however_a_raw_prompt_cuts_it(qwen: Case, cut: str) -> None:
    for at in range(12):
        text = "x " * at + PAD + " and so on, for a while"
        prompt = qwen.raw(f"{{{{ {cut} }}}} <|image_pad|>", {"q": text}, A)
        assert prompt.text == qwen.raw(f"{{{{ {cut} }}}}", {"q": text}).text + f" {PAD}"
        assert (prompt.ids >= FIRST_IMAGE_ID).sum() == 2
        assert prompt.ids[-1] >= FIRST_IMAGE_ID
        assert qwen.placeholder not in prompt.ids.tolist()


def test_a_part_of_a_placeholder_has_the_ids_that_it_always_had(qwen: Case) -> None:
    cut = f"Say {PAD}"[:-1]
    assert qwen.raw("{{ q[:-1] }}", {"q": f"Say {PAD}"}).ids.tolist() == qwen.tokenizer.encode(cut).ids.tolist()
    odd = qwen.raw("{{ q[:9] }}", {"q": "\ufdd0 and " + PAD})
    assert odd.text == "\ufdd0 and <|i"


def test_a_template_that_takes_lists_alone_shows_text_too(tmp_path: Path) -> None:
    llava = Case(tmp_path / "llava", "llava")
    assert llava.chat([{"role": "user", "content": "Hello"}]).text == "USER: Hello ASSISTANT:"
    prompt = llava.chat([{"role": "user", "content": "What is <image>?"}], A)
    assert prompt.text == "USER: <image>\nWhat is <image>? ASSISTANT:"
    assert prompt.images[0].tokens == 4
    assert prompt.images[0].grid == (1, 1, 4)
    assert list(prompt.images[0].inputs()) == ["pixel_values"]


def test_a_template_without_a_place_for_pictures_is_refused(tmp_path: Path) -> None:
    text_only = Case(tmp_path / "text", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert text_only.chat([{"role": "user", "content": "Hi"}]).text == "Hi"
    with pytest.raises(RowError, match=r"chat template has no place for pictures; set prompt.chat_template"):
        text_only.chat(user(image(A)))


def test_pixels_are_made_anew_and_a_changed_file_is_noticed(qwen: Case) -> None:
    (qwen.folder / "changing.png").write_bytes(B)
    [picture] = qwen.chat(user(image(A), "x")).images
    made = picture.inputs()
    assert made["pixel_values"].shape == (8, 3 * 2 * 14 * 14)
    assert made["image_grid_thw"].tolist() == [[1, 2, 4]]
    named = qwen.chat(user({"type": "image", "path": "changing.png"})).images[0]
    assert named.inputs()["image_grid_thw"].tolist() == [[1, 6, 2]]
    (qwen.folder / "changing.png").write_bytes(A)
    with pytest.raises(DataError, match=r"changing\.png changed while the run read it"):
        named.inputs()
    (qwen.folder / "changing.png").unlink()
    with pytest.raises(DataError, match=r"changing\.png is not there"):
        named.inputs()


def test_a_picture_that_the_processor_refuses_is_an_error_of_its_row(qwen: Case) -> None:
    with pytest.raises(RowError, match="the model's image processor refuses it: absolute aspect ratio must be smaller than 200") as caught:
        qwen.chat(user(image(picture_bytes(drawn(500, 1))), "x"))
    assert caught.value.stage == "image"


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (3, 90), (300, 2)])
def test_tiny_pictures_have_places_and_pixels_that_fit(qwen: Case, size: tuple[int, int]) -> None:
    [picture] = qwen.chat(user(image(picture_bytes(drawn(*size))))).images
    made = picture.inputs()
    assert made["pixel_values"].shape[0] == 4 * picture.tokens == math.prod(made["image_grid_thw"][0].tolist())


def test_the_chat_template_of_an_older_processor_is_found(tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / "llava", "llava")
    template = folder / "chat_template.jinja"
    own = folder / "chat_template.json"
    own.write_text(json.dumps({"chat_template": template.read_text()}))
    template.unlink()
    tokenizer = load_tokenizer(folder, None, {}, False)
    assert tokenizer.chat_text([{"role": "user", "content": [{"type": "image"}]}], "") == "USER: <image>\n ASSISTANT:"
    own.write_text("[]")
    with pytest.raises(ModelError, match=r"chat_template\.json holds no chat template"):
        load_tokenizer(folder, None, {}, False)


def test_what_is_remembered_of_a_picture_does_not_grow_with_its_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SIZES", 2)
    case = Case(tmp_path / "qwen")
    decoded: list[str] = []
    real = placeholders.read_picture

    def reading(data: bytes, name: str, most: int) -> Any:
        decoded.append(name)
        return real(data, name, most)

    monkeypatch.setattr(placeholders, "read_picture", reading)
    pictures = [picture_bytes(drawn(28 * width, 28)) for width in (2, 3, 4, 5)]
    for _ in range(2):
        for data in pictures:
            assert len(case.chat(user(image(data))).images) == 1
    assert list(case.encoder._sizes.values()) == [(28 * width, 28) for width in (2, 3, 4, 5)]  # pyright: ignore[reportPrivateUsage]
    assert len(decoded) == 8, "a layout that was dropped is made anew"
    case.chat(user(image(pictures[-1])))
    assert len(decoded) == 8
