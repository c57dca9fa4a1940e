"""Tests texts as tokens: the scored tokens of a document and of a chat, the text they cover, and cuts."""

from typing import Any

import numpy as np
import pytest
from mlx_bulk.jobs.score.scored_text import ScoredText, encode_document, fit_chat
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...checkpoints import BOS
from ...runner.support.small_tokenizers import demo

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Who is there, and who comes with him tonight?"},
    {"role": "assistant", "content": "The king, café."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "The queen."},
]


def counts(tokens: ScoredText) -> tuple[int, int, int, int]:
    return tokens.bytes, tokens.scored_bytes, tokens.words, tokens.chars


@pytest.mark.parametrize(
    ("text", "ids", "expected"),
    [
        ("", 1, (0, 0, 1, 0)),  # one empty piece, by lm-eval's formula
        ("a", 2, (1, 1, 1, 1)),
        ("é", 3, (2, 2, 1, 1)),
        ("a\r\nb", 5, (4, 4, 2, 4)),
        (" a\n", 3, (3, 3, 3, 3)),  # the pieces around white space count, as in lm-eval
    ],
)
def test_a_document_after_bos(text: str, ids: int, expected: tuple[int, int, int, int]) -> None:
    tokens = encode_document(text, demo(), BOS)
    assert (len(tokens.ids), tokens.ids[0], tokens.offsets[0]) == (ids, BOS, 0)
    assert tokens.scored.tolist() == [False] + [True] * (ids - 1)
    assert counts(tokens) == expected


def test_a_document_without_prefix_leaves_out_its_first_token() -> None:
    tokens = encode_document("The king is", demo(), None)
    assert tokens.scored.tolist() == [False, True, True]
    assert counts(tokens) == (11, 8, 3, 11)
    assert counts(encode_document("", demo(), None)) == (0, 0, 1, 0)
    assert counts(encode_document("The", demo(), None)) == (3, 0, 1, 3)
    assert counts(encode_document("The king\n", demo(), None)) == (9, 6, 3, 9)
    assert counts(encode_document("éa", demo(), None))[1] == 3  # é is two tokens, of which the second is scored: it counts whole


def test_a_bos_that_the_text_brings_is_not_doubled() -> None:
    tokens = encode_document("<|endoftext|>The king", demo(), BOS)
    assert tokens.ids.tolist() == encode_document("The king", demo(), BOS).ids.tolist()
    assert tokens.offsets.tolist() == [0, 13, 16]
    assert counts(tokens) == (21, 8, 2, 21)


def test_a_chat_scores_the_assistants_turns() -> None:
    tokens = fit_chat(demo().encode_turns(CHAT), BOS, None, "error")
    scored = [demo().decode(tokens.ids[i : i + 1]) for i in np.flatnonzero(tokens.scored)]
    assert "".join(scored).replace("\ufffd", "") == "The king, caf.The queen."
    turns = "The king, café.", "The queen."  # the tokens that end them are scored, and are no text
    assert counts(tokens) == (sum(len(t.encode()) for t in turns),) * 2 + (5, sum(map(len, turns)))
    assert not tokens.truncated


def test_a_chat_without_the_assistant_has_nothing_to_score() -> None:
    tokens = fit_chat(demo().encode_turns(CHAT[:1]), BOS, None, "error")
    assert not tokens.scored.any()
    assert counts(tokens) == (0, 0, 0, 0)


def test_a_chat_that_fits_to_the_token_is_not_cut() -> None:
    turns = demo().encode_turns(CHAT)
    n = turns.tokens[-1][1]
    assert not fit_chat(turns, BOS, n - 1, "error").truncated
    said = rf"the chat has {n} tokens to the end of the assistant's last turn, and the context takes {n - 2} and one more"
    with pytest.raises(RowError, match=said) as refused:
        fit_chat(turns, BOS, n - 2, "error")
    assert refused.value.stage == "too_long"


@pytest.mark.parametrize("too_long", ["error", "truncate_left", "truncate_right"])
def test_text_after_the_last_turn_takes_no_context(too_long: str) -> None:
    turns = demo().encode_turns([*CHAT[:2], {"role": "user", "content": "Go on. " * 100}])
    end = turns.tokens[-1][1]
    tokens = fit_chat(turns, BOS, end - 1, too_long)
    assert not tokens.truncated
    assert np.flatnonzero(tokens.scored).tolist() == list(range(*turns.tokens[0]))
    assert counts(tokens) == (16, 16, 3, 15)
    if too_long == "truncate_left":
        cut = fit_chat(turns, BOS, end - 2, too_long)
        assert (cut.truncated, cut.ids.tolist()) == (True, [BOS, *turns.prompt.ids[2:end]])
        assert counts(cut) == (16, 16, 3, 15)


def test_a_chat_of_which_nothing_is_scored_is_never_too_long() -> None:
    turns = demo().encode_turns([{"role": "user", "content": "Go on. " * 100}])
    assert not fit_chat(turns, BOS, 5, "error").truncated


def test_a_turn_of_an_end_alone_has_a_token_and_no_text() -> None:
    tokens = fit_chat(demo().encode_turns([CHAT[0], {"role": "assistant", "content": ""}]), BOS, None, "error")
    assert int(tokens.scored.sum()) == 1
    assert counts(tokens) == (0, 0, 0, 0)


def test_words_of_a_cut_chat_are_those_that_are_scored() -> None:
    turns = demo().encode_turns(CHAT)
    first = turns.tokens[0][1] - turns.tokens[0][0]
    tokens = fit_chat(turns, BOS, turns.tokens[0][1] - 1, "truncate_right")
    assert (int(tokens.scored.sum()), *counts(tokens)) == (first, 26, 16, 3, 25)


def test_a_chat_cut_left_keeps_bos_and_the_last_tokens() -> None:
    turns = demo().encode_turns(CHAT)
    whole = fit_chat(turns, BOS, None, "error")
    end = turns.tokens[-1][1]
    for keep in range(2, end):
        tokens = fit_chat(turns, BOS, keep - 1, "truncate_left")
        assert tokens.truncated
        assert tokens.ids.tolist() == [BOS, *whole.ids[end - keep + 1 : end]]
        assert tokens.scored.tolist() == [False, *whole.scored[end - keep + 1 : end]]
        assert tokens.scored_bytes == covered(tokens)


def test_a_chat_cut_right_keeps_the_first_tokens() -> None:
    turns = demo().encode_turns(CHAT)
    whole = fit_chat(turns, BOS, None, "error")
    for keep in range(2, turns.tokens[-1][1]):
        tokens = fit_chat(turns, BOS, keep - 1, "truncate_right")
        assert tokens.ids.tolist() == whole.ids[:keep].tolist()
        assert tokens.scored.tolist() == whole.scored[:keep].tolist()
        if whole.offsets[keep] != whole.offsets[keep - 1]:
            assert tokens.scored_bytes == covered(tokens)


def test_without_bos_the_first_token_that_is_left_is_not_scored() -> None:
    turns = demo().encode_turns(CHAT)
    last = turns.tokens[-1][1]
    tokens = fit_chat(turns, None, 2, "truncate_left")
    assert tokens.ids.tolist() == turns.prompt.ids[last - 3 : last].tolist()
    assert tokens.scored.tolist() == [False, True, True]


def test_the_first_token_of_a_chat_is_never_scored() -> None:
    template = "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endif %}{% endfor %}"  # noqa: E501
    tokenizer = Tokenizer(demo()._hf, template)  # pyright: ignore[reportPrivateUsage]
    tokens = fit_chat(tokenizer.encode_turns(CHAT[1:2]), BOS, None, "error")
    assert tokens.scored.tolist() == [False, *[True] * (len(tokens.ids) - 1)]
    assert (tokens.bytes, tokens.scored_bytes) == (16, 13)  # less "The"


def covered(tokens: ScoredText) -> int:
    """Counts the UTF-8 bytes of the characters in scored tokens, each once, without special tokens."""
    ends = np.append(tokens.offsets[1:], tokens.until)
    plain = [i for i in np.flatnonzero(tokens.scored) if tokens.ids[i] not in demo().special]
    chars = {c for i in plain for c in range(tokens.offsets[i], max(ends[i], tokens.offsets[i] + 1))}
    return len("".join(tokens.text[c] for c in sorted(chars)).encode())
