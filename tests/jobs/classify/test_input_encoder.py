"""Tests how texts, pairs and chats are encoded and cut: as transformers' tokenizers do it."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.jobs.classify.input_encoder import Cut, InputEncoder
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from ...checkpoints import BOS
from ...encoder_checkpoints import tiny_bert, tiny_modernbert, tiny_roberta
from ...runner.support.small_tokenizers import demo

KINDS = {"bert": tiny_bert, "roberta": tiny_roberta, "modernbert": tiny_modernbert}
LONG = "how many apples cost more than two dogs each day and is that good or bad in total " * 2
PAIRS = [
    ("how many apples", "two each day"),
    ("cats", LONG),
    (LONG, "dogs"),
    (LONG, f"{LONG} {LONG}"),
    ("", "cats"),
    ("cats", ""),
    ("", ""),
]


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return of(KINDS[request.param](tmp_path_factory.mktemp("tokenizers") / request.param, 1))


def of(folder: Path) -> Tokenizer:
    return load_tokenizer(folder, None, {}, trust_remote_code=False)


@cache
def transformers_of(tokenizer: Tokenizer, side: str) -> Any:
    """transformers' tokenizer of the same files, which cuts at this side."""
    return tokenizer.hf.__class__.from_pretrained(tokenizer.hf.name_or_path, truncation_side=side)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("cut", ["truncate_right", "truncate_left"])
@pytest.mark.parametrize("limit", [None, 8, pytest.param(21, marks=pytest.mark.slow)])
def test_pairs_are_encoded_and_cut_as_transformers_does(
    tokenizer: Tokenizer, limit: int | None, cut: Cut, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "plain", plain)  # not so for a class that changes texts first
    encoder = InputEncoder(tokenizer, limit, cut, types=True)
    found = [encoder.pair(*pair) for pair in PAIRS]
    theirs = transformers_of(tokenizer, cut.removeprefix("truncate_"))
    settings = {} if limit is None else {"truncation": "longest_first", "max_length": limit}
    batch = theirs([list(pair) for pair in PAIRS], **settings)  # a single pair with an empty second text becomes one text there
    assert [one.ids.tolist() for one, _ in found] == batch["input_ids"]
    zeros = [np.zeros(len(one.ids), np.int32) if one.types is None else one.types for one, _ in found]
    assert [types.tolist() for types in zeros] == batch.get("token_type_ids", [[0] * len(ids) for ids in batch["input_ids"]])
    whole = theirs([list(pair) for pair in PAIRS])["input_ids"]
    assert [cut for _, cut in found] == [limit is not None and len(ids) > limit for ids in whole]


@pytest.mark.parametrize("cut", ["auto", "truncate_left"])
def test_texts_are_cut_as_transformers_does(tokenizer: Tokenizer, cut: Cut) -> None:
    side = "left" if cut == "truncate_left" else "right"
    theirs = transformers_of(tokenizer, side)
    for text in ("how many", LONG, ""):
        one, was_cut = InputEncoder(tokenizer, 9, cut, types=True).text(text)
        assert one.ids.tolist() == theirs(text, truncation=True, max_length=9)["input_ids"]
        assert (was_cut, one.types) == (text == LONG, None)


def test_a_model_without_types_gets_none(tmp_path: Path) -> None:
    one, _ = InputEncoder(of(tiny_bert(tmp_path / "bert", 1)), None, "auto", types=False).pair("cats", "dogs")
    assert one.types is None


def test_what_may_not_be_cut_is_an_error_that_names_the_cure(tokenizer: Tokenizer) -> None:
    with pytest.raises(RowError, match=r"the pair has 12 tokens, and the model takes 4; shorten it, or set classify.too_long to trunc"):
        InputEncoder(of(tiny_bert_folder(tokenizer)), 4, "error", types=True).pair("how many apples cats", "dogs has have had buys")


def tiny_bert_folder(tokenizer: Tokenizer) -> Path:
    folder = Path(tokenizer.hf.name_or_path).parent / "counted"
    return folder if folder.exists() else tiny_bert(folder, 1)


def test_an_input_without_a_token_is_an_error() -> None:
    encoder = InputEncoder(demo(), None, "auto", types=False)
    with pytest.raises(RowError, match="the pair is empty: it has no token that the model could read"):
        encoder.pair("", "")
    assert encoder.pair("", "a")[0].ids.tolist() == demo().encode_text("a").ids.tolist()


def test_a_hundred_thousand_characters_are_cut(tokenizer: Tokenizer) -> None:
    one, cut = InputEncoder(tokenizer, 64, "auto", types=True).pair("how many", LONG * 675)
    assert (len(one.ids), cut) == (64, True)


# --------------------------------------------------------------------------------------------------------------- chats

CHAT = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "The king is " * 20}]


def chat_ids(messages: list[dict[str, Any]], **variables: Any) -> list[int]:
    return demo().hf.apply_chat_template(messages, tokenize=True, return_dict=True, **variables)["input_ids"]


def test_a_chat_has_one_bos_and_no_generation_prompt_of_its_own() -> None:
    encoder = InputEncoder(demo(), None, "auto", types=False)
    for prompted in (False, True):
        one, cut = encoder.chat(CHAT, {"add_generation_prompt": prompted})
        assert one.ids.tolist() == chat_ids(CHAT, add_generation_prompt=prompted)
        assert (one.ids.tolist().count(BOS), cut) == (1, False)
    assert chat_ids(CHAT, add_generation_prompt=True) != chat_ids(CHAT, add_generation_prompt=False)


@pytest.mark.parametrize("prompted", [False, True])
def test_a_chat_is_refused_or_cut_before_its_end(prompted: bool) -> None:
    variables, whole = {"add_generation_prompt": prompted}, chat_ids(CHAT, add_generation_prompt=prompted)
    with pytest.raises(RowError, match=f"the chat has {len(whole)} tokens, and the model takes 40"):
        InputEncoder(demo(), 40, "auto", types=False).chat(CHAT, variables)
    one, cut = InputEncoder(demo(), 40, "truncate_right", types=False).chat(CHAT, variables)
    end = demo().encode_text(ending(prompted)).ids.tolist()
    assert (one.ids.tolist(), cut) == (whole[: 40 - len(end)] + end, True)
    one, _ = InputEncoder(demo(), 40, "truncate_left", types=False).chat(CHAT, variables)
    assert one.ids.tolist() == [BOS, *whole[-39:]]


def ending(prompted: bool) -> str:
    """The text that follows a chat's last content."""
    text = demo().messages_text(CHAT, add_generation_prompt=prompted)
    return text[text.rindex(CHAT[1]["content"].strip()) + len(CHAT[1]["content"].strip()) :].lstrip(" ")


def test_the_end_of_a_template_may_be_longer_than_the_model_takes() -> None:
    one, _ = InputEncoder(demo(), 2, "truncate_right", types=False).chat(CHAT, {"add_generation_prompt": True})
    assert one.ids.tolist() == chat_ids(CHAT, add_generation_prompt=True)[-2:]
