"""Tests logprobs in OpenAI's two shapes: tokens, bytes, alternatives, offsets, and tokens of probability 0."""

from typing import Any

import numpy as np
import pytest
from mlx_bulk.jobs.export.openai_logprobs import chat_logprobs, completion_logprobs, openai_spelling
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs

from ...runner.support.small_tokenizers import demo

TOKENS = [b"a", " é".encode(), b"\xe2", b"\x9c\x93", b"<|end|>", b" a", b"a"]  # 6 reads as 0 does
SPELL = openai_spelling(lambda token: TOKENS[token])
RECORD: dict[str, Any] = {
    "prompt": "a é",
    "prompt_ids": [0, 1],
    "prompt_logprobs": [None, -0.5],
    "prompt_text_offset": [0, 1],
    "prompt_top_ids": [None, [5, 1]],
    "prompt_top_logprobs": [None, [-0.25, -0.5]],
    "completion_ids": [0, 2, 3, 4],
    "logprobs": [-0.125, -1.0, -2.0, float("-inf")],
    "text_offset": [0, 1, 1, 2],
    "top_ids": [[6, 0], [5, 1], [3, 0], [0, 5]],
    "top_logprobs": [[-0.0625, -0.125], [-0.25, -0.5], [-2.0, -3.0], [-0.5, float("-inf")]],
}


def test_a_chat_completions_logprobs():
    found = chat_logprobs(RECORD, SPELL)
    content = ChoiceLogprobs.model_validate(found, strict=True).content
    assert content is not None
    assert [entry.token for entry in content] == ["a", "\\xe2", "\\x9c\\x93", "<|end|>"]
    assert bytes(byte for entry in content for byte in entry.bytes or []).decode() == "a✓<|end|>"
    assert [entry.logprob for entry in content] == [-0.125, -1.0, -2.0, -9999.0]
    assert [[(other.token, other.logprob) for other in entry.top_logprobs] for entry in content] == [
        [("a", -0.0625), ("a", -0.125)],  # two tokens that read alike
        [(" a", -0.25), (" é", -0.5)],
        [("\\x9c\\x93", -2.0), ("a", -3.0)],
        [("a", -0.5), (" a", -9999.0)],
    ]


def test_a_completions_logprobs():
    found = completion_logprobs(RECORD, SPELL, prompt=False, completion=True)
    shape = Logprobs.model_validate(found, strict=True)
    assert shape.tokens == ["a", "bytes:\\xe2", "bytes:\\x9c\\x93", "<|end|>"]
    assert shape.token_logprobs == [-0.125, -1.0, -2.0, -9999.0]
    assert shape.text_offset == [0, 1, 1, 2]
    assert shape.top_logprobs == [
        {"a": -0.0625},  # of two that read alike the likelier
        {" a": -0.25, " é": -0.5, "bytes:\\xe2": -1.0},  # the token itself, which is not among the likeliest
        {"bytes:\\x9c\\x93": -2.0, "a": -3.0},
        {"a": -0.5, " a": -9999.0, "<|end|>": -9999.0},
    ]


def test_the_echo_of_a_prompt_goes_before_it():
    found = completion_logprobs(RECORD, SPELL, prompt=True, completion=True)
    assert found["tokens"] == ["a", " é", "a", "bytes:\\xe2", "bytes:\\x9c\\x93", "<|end|>"]
    assert found["token_logprobs"][:3] == [None, -0.5, -0.125]
    assert found["text_offset"] == [0, 1, 3, 4, 4, 5]
    assert found["top_logprobs"][:2] == [None, {" a": -0.25, " é": -0.5}]


def test_an_echo_alone():
    found = completion_logprobs(RECORD, SPELL, prompt=True, completion=False)
    assert (found["tokens"], found["text_offset"]) == (["a", " é"], [0, 1])


def test_without_alternatives():
    record = {name: value for name, value in RECORD.items() if "top" not in name}
    assert completion_logprobs(record, SPELL, prompt=True, completion=True)["top_logprobs"] is None
    assert [entry["top_logprobs"] for entry in chat_logprobs(record, SPELL)["content"]] == [[]] * 4


@pytest.mark.parametrize("token", ["text that begins with bytes:", "bytes:\\xe2"])
def test_text_that_looks_like_bytes_is_text(token: str):
    record = {"completion_ids": [0], "logprobs": [-1.0], "text_offset": [0], "prompt": ""}
    found = completion_logprobs(record, openai_spelling(lambda _: token.encode()), prompt=False, completion=True)
    assert found["tokens"] == [token]


def test_the_tokens_of_a_text_put_together_are_the_text():
    text = "naïve 東京 🙂!"
    ids = demo().encode_text(text).ids
    record = {"completion_ids": ids.tolist(), "logprobs": np.zeros(len(ids)).tolist(), "text_offset": [], "prompt": ""}
    content = chat_logprobs(record, openai_spelling(demo().token_bytes))["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == text
