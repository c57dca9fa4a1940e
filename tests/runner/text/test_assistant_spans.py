"""Tests the assistant's turns of a chat: their spans in the text and in the tokens, and refusals."""

from typing import Any

import pytest
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.text.assistant_spans import marks_turns
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...checkpoints import EOS
from ..support.small_tokenizers import demo, sentencepiece_like

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi, café?"},
    {"role": "assistant", "content": "Oui, 東京.\n"},
    {"role": "user", "content": "Ok"},
    {"role": "assistant", "content": "Fin"},
]
MARKED = "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"  # noqa: E501


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    return Tokenizer(tokenizer._hf, template)  # pyright: ignore[reportPrivateUsage]


def test_spans_hold_what_the_template_marks_in_text_and_in_tokens() -> None:
    turns = demo().encode_turns(CHAT)
    assert [turns.prompt.text[start:end] for start, end in turns.spans] == ["Oui, 東京.\n<|im_end|>", "Fin<|im_end|>"]
    assert [turns.prompt.text[start:end] for start, end in turns.text_spans] == ["Oui, 東京.\n", "Fin"]
    assert [demo().decode(turns.prompt.ids[start:end]) for start, end in turns.tokens] == ["Oui, 東京.\n", "Fin"]
    assert all(turns.prompt.ids[end - 1] == EOS for _, end in turns.tokens)


def test_tokens_are_those_that_transformers_masks() -> None:
    turns = demo().encode_turns(CHAT)
    hf: Any = demo()._hf  # pyright: ignore[reportPrivateUsage]
    masked = hf.apply_chat_template(CHAT, return_assistant_tokens_mask=True, return_dict=True)
    assert turns.prompt.ids.tolist() == masked["input_ids"]
    assert [i for start, end in turns.tokens for i in range(start, end)] == [i for i, m in enumerate(masked["assistant_masks"]) if m]


def test_text_spans_hold_no_special_tokens() -> None:
    turns = demo().encode_turns([{"role": "assistant", "content": "<|im_start|>a <|im_end|><|im_end|> b"}])
    assert [turns.prompt.text[start:end] for start, end in turns.text_spans] == ["a ", " b"]
    assert demo().encode_turns([{"role": "assistant", "content": ""}]).text_spans == ()


def test_no_turn_has_no_span() -> None:
    assert demo().encode_turns(CHAT[:1]).spans == ()


def test_a_null_field_of_a_message_is_left_out() -> None:
    turns = demo().encode_turns([{**CHAT[0], "name": None}, CHAT[1]])
    assert turns.spans == demo().encode_turns(CHAT[:2]).spans


def test_a_token_across_the_start_of_a_turn_is_refused() -> None:
    tokenizer = with_template(demo(), MARKED)
    with pytest.raises(RowError, match="start of the assistant's turn 1 a token lies across the border of 'the ki' and 'ng'"):
        tokenizer.encode_turns([{"role": "user", "content": "the ki"}, {"role": "assistant", "content": "ng"}])


def test_the_second_turns_end_is_named() -> None:
    tokenizer = with_template(demo(), MARKED)
    words = [("user", "A\n"), ("assistant", "B\n"), ("user", "C\n"), ("assistant", "the ki"), ("user", "ng")]
    with pytest.raises(RowError, match="end of the assistant's turn 2"):
        tokenizer.encode_turns([{"role": role, "content": content} for role, content in words])


def test_a_tokenizer_that_puts_a_space_before_every_text_can_be_used() -> None:
    # Its parts tokenized apart would each begin with ▁; what stands before a border, tokenized alone, does not.
    tokenizer = with_template(sentencepiece_like(bpe=True), MARKED)
    turns = tokenizer.encode_turns([{"role": "user", "content": "the"}, {"role": "assistant", "content": "kat"}])
    assert turns.tokens == ((3, 6),)  # ▁ th e | k a t


def test_a_template_that_refuses_costs_the_row() -> None:
    tokenizer = with_template(demo(), "{{ raise_exception('roles must alternate') }}" + MARKED)
    with pytest.raises(RowError, match="roles must alternate"):
        tokenizer.encode_turns(CHAT)


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        (MARKED, True),
        ("{%- generation -%}x{%- endgeneration -%}", True),
        ("{{ generation }}{% if add_generation_prompt %}{% endif %}", False),
    ],
)
def test_marks_are_told_from_the_word(template: str, marks: bool) -> None:
    assert marks_turns(template) == marks
