"""Whole chats with pictures whose assistant's turns are scored: ids, and which of them are the assistant's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID
from mlx_bulk.runner.text.assistant_spans import AssistantTurns

from ...vision_folders import QWEN_TEMPLATE, drawn, picture_bytes
from .test_placeholders import PAD, Case, image, user

MARKED = QWEN_TEMPLATE.replace(
    "{{ message.role }}\n",
    "{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}{{ message.content if message.content is string else "
    "'<|vision_start|><|image_pad|><|vision_end|>' }}{% endgeneration %}{% else %}",
).replace("{% endif %}<|im_end|>", "{% endif %}{% endif %}<|im_end|>")
A, B = picture_bytes(drawn(60, 40)), picture_bytes(drawn(28, 84, shade=3))


@pytest.fixture(scope="module", name="case")
def a_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("qwen"), template=MARKED)


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def turns(case: Case, messages: list[dict[str, Any]]) -> AssistantTurns:
    return case.encoder.whole_chat(messages, "messages", [], case.folder)


def test_the_assistants_tokens_are_found_behind_pictures(case: Case) -> None:
    chat = turns(case, [*user("What is ", image(A), "?"), said("A dog."), *user(f"And {PAD}", image(B)), said(f"No {PAD} there.")])
    ids = chat.prompt.ids
    pieces = [case.tokenizer.decode(np.array(case.encoder.table.plain(ids[start:end]))) for start, end in chat.tokens]
    assert pieces == ["A dog.", "No <|image_pad|> there."] or pieces == ["A dog.", "No  there."]
    assert [chat.prompt.text[start:end] for start, end in chat.spans] == ["A dog.", f"No {PAD} there."]
    assert [image.tokens for image in chat.prompt.images] == [2, 3]
    assert int((ids >= FIRST_IMAGE_ID).sum()) == 5
    assert not any((ids[start:end] >= FIRST_IMAGE_ID).any() for start, end in chat.tokens)


def test_a_chat_without_pictures_is_as_a_text_model_reads_it(case: Case) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}, said("Hello there")]
    mine, theirs = turns(case, messages), case.tokenizer.encode_turns(messages)
    assert mine.prompt.ids.tolist() == theirs.prompt.ids.tolist()
    assert (mine.spans, mine.tokens, mine.text_spans) == (theirs.spans, theirs.tokens, theirs.text_spans)


def test_a_picture_in_what_is_scored_is_refused(case: Case) -> None:
    with pytest.raises(RowError, match="the assistant's turn 2 holds a picture, whose tokens have no logprobs; give the picture to a"):
        turns(case, [*user("x"), said("one"), *user("y"), {"role": "assistant", "content": [image(A)]}])


def test_a_picture_behind_the_last_turn_is_no_fault(case: Case) -> None:
    chat = turns(case, [*user("x"), said("one"), *user(image(A))])
    assert len(chat.tokens) == 1
    assert len(chat.prompt.images) == 1


def test_a_chat_of_which_a_picture_is_missing_is_an_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"gone\.png is not there") as caught:
        turns(case, [*user({"type": "image", "path": "gone.png"}), said("one")])
    assert caught.value.stage == "image"
