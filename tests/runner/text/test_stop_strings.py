"""Tests stop strings, matched on text while it is generated: across tokens and characters."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.text.stop_strings import StopStrings, cut_at_stop
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ..support.small_tokenizers import GPT2_BYTES, IM_START, demo, demo_backend, sentencepiece_like


def pushed(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...], after: int = 0) -> tuple[int, str | None]:
    """Returns how many of ``ids`` were taken until one completed a stop string, and which."""
    watch = StopStrings(tokenizer, stop, after)
    for count, token in enumerate(ids, start=1):
        if (found := watch.push(token)) is not None:
            return count, found
    return len(ids), None


def single_bytes(text: str) -> list[int]:
    """Ids of the demo's tokenizer that are one byte each."""
    vocabulary = demo_backend().get_vocab()
    return [vocabulary[GPT2_BYTES[byte]] for byte in text.encode()]


def test_a_stop_string_across_tokens_and_split_characters():
    tokenizer, ids = demo(), single_bytes("a🙂é!")
    assert len(ids) == 1 + 4 + 2 + 1
    assert pushed(tokenizer, ids, ("🙂",)) == (5, "🙂")
    assert pushed(tokenizer, ids, ("a🙂é",)) == (7, "a🙂é")
    assert pushed(tokenizer, ids, ("\ufffd",)) == (8, None)  # a half character is none
    assert pushed(tokenizer, ids, ("é!", "!")) == (8, "é!")


def test_broken_bytes_do_not_hide_what_follows():
    tokenizer = demo()
    ids = [*single_bytes("🙂")[:2], *single_bytes("a stop b")]
    assert pushed(tokenizer, ids, ("stop",)) == (2 + len("a stop"), "stop")


def test_the_earliest_match_wins_then_the_first_listed():
    tokenizer = demo()
    ids = single_bytes("xyz")
    assert pushed(tokenizer, ids, ("z", "xyz", "yz")) == (3, "xyz")
    assert pushed(tokenizer, ids, ("yz", "xy")) == (2, "xy")
    whole = tokenizer.encode(" messenger").ids[1:].tolist()
    assert len(whole) < len(" messenger")
    assert pushed(tokenizer, whole, ("enger", "e"))[1] == "e"


def test_matches_within_min_tokens_do_not_count():
    tokenizer, ids = demo(), single_bytes("ababab")
    assert pushed(tokenizer, ids, ("ab",)) == (2, "ab")
    assert pushed(tokenizer, ids, ("ab",), after=2) == (4, "ab")
    # A match may begin before the limit, if it ends behind it.
    assert pushed(tokenizer, ids, ("ab",), after=3) == (4, "ab")
    assert cut_at_stop("ababab"[:4], ("ab",), "ab", include=False, least=3) == "ab"
    assert cut_at_stop("ababab"[:4], ("ab",), "ab", include=True, least=3) == "abab"
    assert pushed(tokenizer, ids, ("ab",), after=6) == (6, None)


def test_special_tokens_are_no_text_but_count_as_tokens():
    tokenizer = demo()
    a, b = single_bytes("ab")
    assert pushed(tokenizer, [a, IM_START, b], ("ab",)) == (3, "ab")
    assert pushed(tokenizer, [a, IM_START, b], ("<|im_start|>",)) == (3, None)
    assert pushed(tokenizer, [a, IM_START, b, a, b], ("ab",), after=3) == (5, "ab")


@settings(deadline=None)  # the first example loads the tokenizer
@given(st.text(alphabet="ab é京🙂", min_size=1, max_size=12), st.text(alphabet="ab é京🙂", min_size=1, max_size=3))
def test_stop_strings_are_found_where_they_are(text: str, stop: str):
    for tokenizer in (demo(), sentencepiece_like(bpe=True)):
        ids = tokenizer.encode(text).ids.tolist()
        shown = tokenizer.decode(np.array(ids, np.int32))
        taken, found = pushed(tokenizer, ids, (stop,))
        assert (found == stop) == (stop in shown)
        if found:
            assert stop in tokenizer.decode(np.array(ids[:taken], np.int32))
            assert stop not in tokenizer.decode(np.array(ids[: taken - 1], np.int32))


def test_bytes_of_a_byte_fallback_tokenizer_are_read_as_a_whole_run():
    tokenizer = sentencepiece_like(bpe=True)
    ids: list[Any] = tokenizer.encode("東京🙂東京🙂.").ids.tolist()
    assert len(ids) > 2 * (3 + 3 + 4)
    assert pushed(tokenizer, ids, ("京🙂東",))[1] == "京🙂東"
    assert pushed(tokenizer, ids, ("🙂.",)) == (len(ids), "🙂.")


def test_a_stop_string_after_many_broken_bytes():
    """Half characters wait for their rest as long as the whole text would let them, so that both read the same."""
    ids = single_bytes("é")[:1] * 2 + single_bytes("🎉 ok")
    assert pushed(demo(), ids, ("🎉",)) == (2 + 4, "🎉")
