"""The tokenizers library is asked itself, and gives what transformers gives; a class with code of its own is left in charge."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.text.tokenizer import Tokenizer
from transformers import PreTrainedTokenizerFast

from ..support.small_tokenizers import demo, metaspace, sentencepiece_like, trimming

MAKERS: list[Callable[[], Tokenizer]] = [demo, metaspace, trimming, lambda: sentencepiece_like(bpe=True)]


@pytest.mark.parametrize("make", MAKERS)
@given(text=st.text(max_size=30) | st.sampled_from(["<|im_start|>user", "<s>a</s>", "<s><s>"]), special=st.booleans())
def test_ids_and_marks_are_those_of_transformers(make: Callable[[], Tokenizer], text: str, special: bool):
    tokenizer = make()
    hf: Any = tokenizer._hf  # pyright: ignore[reportPrivateUsage]
    ids, added, offsets = tokenizer._encoded(text, special)  # pyright: ignore[reportPrivateUsage]
    theirs = hf(text, add_special_tokens=special, return_offsets_mapping=True, return_special_tokens_mask=True)
    assert ids == theirs["input_ids"]
    fast, _ = tokenizer._encode(text, special)  # pyright: ignore[reportPrivateUsage]
    assert fast.tolist() == ids
    assert added == theirs["special_tokens_mask"]
    assert offsets == theirs["offset_mapping"]


@pytest.mark.parametrize("make", MAKERS)
@given(data=st.data())
def test_texts_are_those_of_transformers(make: Callable[[], Tokenizer], data: st.DataObject):
    tokenizer = make()
    hf: Any = tokenizer._hf  # pyright: ignore[reportPrivateUsage]
    ids = np.array(data.draw(st.lists(st.integers(0, len(hf) - 1), max_size=12)), np.int32)
    theirs = hf.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert tokenizer.decode(ids) == theirs


def test_transformers_is_not_asked_for_each_token(monkeypatch: pytest.MonkeyPatch):
    tokenizer = demo()
    ids = tokenizer.encode_text("The king").ids
    monkeypatch.setattr(PreTrainedTokenizerFast, "_decode", lambda *_, **__: pytest.fail("it was asked"))
    assert tokenizer.decode(ids) == "The king"


def test_a_class_that_decodes_by_itself_is_asked():
    class Whispering(PreTrainedTokenizerFast):
        def _decode(self, *ids: Any, **options: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super()._decode(*ids, **options).lower()

    hf: Any = demo()._hf  # pyright: ignore[reportPrivateUsage]
    quiet = Tokenizer(Whispering(tokenizer_object=hf.backend_tokenizer))
    assert quiet.decode(quiet.encode_text("The King").ids) == "the king"


def test_transformers_is_not_asked_for_each_text(monkeypatch: pytest.MonkeyPatch):
    tokenizer = demo()
    monkeypatch.setattr(PreTrainedTokenizerFast, "_encode_plus", lambda *_, **__: pytest.fail("it was asked"))
    assert tokenizer.encode("The king").text == "The king"


def test_a_class_that_changes_texts_is_asked():
    class Shouting(PreTrainedTokenizerFast):
        def _encode_plus(self, text: Any, *rest: Any, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super()._encode_plus(text.upper(), *rest, **options)

    hf: Any = demo()._hf  # pyright: ignore[reportPrivateUsage]
    loud = Tokenizer(Shouting(tokenizer_object=hf.backend_tokenizer))
    assert loud.encode_text("king").ids.tolist() == demo().encode_text("KING").ids.tolist()
