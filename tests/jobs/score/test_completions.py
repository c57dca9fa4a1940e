"""Tests where prompt and completion meet, and how a prompt that is too long is cut."""

import logging

import numpy as np
import pytest
from mlx_bulk.jobs.score.completions import CompletionEncoder
from mlx_bulk.jobs.score.scored_text import ScoredText
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.templates.prompt_templates import Chat, Text
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...checkpoints import BOS
from ...runner.support.small_tokenizers import IM_START, demo, fast, sentencepiece_like, trimming

ROW = Row(7, "k", {})


def made(prompt: str, *completions: str, context: int | None = None, too_long: str = "error", prefix: int | None = BOS) -> list[ScoredText]:
    return list(CompletionEncoder(demo(), prefix, context, too_long).encode(ROW, Text(prompt), completions).completions)


def pieces(tokens: ScoredText, scored: bool) -> list[str]:
    return [demo().decode(tokens.ids[i : i + 1]) for i in np.flatnonzero(tokens.scored == scored)]


@pytest.mark.parametrize(
    ("prompt", "completion", "before", "scored", "asked"),
    [
        ("Answer:\n", "B", ["", "An", "swer", ":"], ["\n", "B"], "\nB"),
        ("The ", "king", ["", "The"], [" king"], " king"),
        ("The", " king", ["", "The"], [" king"], " king"),
        ("The\u00a0\t \n", "x", ["", "The"], ["\ufffd", "\ufffd", "\t", " ", "\n", "x"], "\u00a0\t \nx"),
    ],
)
def test_white_space_moves_to_the_completion(prompt: str, completion: str, before: list[str], scored: list[str], asked: str) -> None:
    tokens = made(prompt, completion)[0]
    assert (pieces(tokens, False), pieces(tokens, True), tokens.parts) == (before, scored, [asked])
    assert tokens.scored_bytes == tokens.bytes == len(asked.encode())


def test_text_after_which_a_tokenizer_adds_a_token() -> None:
    from tokenizers import processors

    backend = trimming()._hf.backend_tokenizer  # pyright: ignore[reportPrivateUsage]
    special = [("<s>", backend.token_to_id("<s>")), ("</s>", backend.token_to_id("</s>"))]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    tokenizer = fast(backend)
    tokens = CompletionEncoder(tokenizer, None, None, "error").encode(ROW, Text("a"), [" k"]).completions[0]
    assert tokenizer._hf.convert_ids_to_tokens(tokens.ids.tolist()) == ["<s>", "a", "Ġk"]  # pyright: ignore[reportPrivateUsage]
    assert tokens.scored.tolist() == [False, False, True]


def test_a_chat_prompt_gets_no_special_tokens_beside_its_own() -> None:
    chat = Chat([{"role": "user", "content": "Hi"}], "The king")
    tokens = CompletionEncoder(demo(), BOS, None, "error").encode(ROW, chat, [" is"]).completions[0]
    assert tokens.ids.tolist().count(BOS) == 1
    assert tokens.ids[:2].tolist() == [BOS, IM_START]
    assert pieces(tokens, True) == [" is"]
    bare = CompletionEncoder(demo(), BOS, None, "error").encode(ROW, Chat(chat.messages), ["Hi"]).completions[0]
    assert bare.parts == ["\nHi"]  # the line end behind "assistant" moves too


def test_an_empty_prompt_is_scored_after_the_prefix() -> None:
    for prompt, asked in (("", "The king"), (" \n", " \nThe king")):
        encoded = CompletionEncoder(demo(), BOS, None, "error").encode(ROW, Text(prompt), ["The king"])
        tokens = encoded.completions[0]
        assert encoded.prompt_tokens == 1
        assert tokens.ids.tolist() == demo().encode(asked).ids.tolist()
        assert (tokens.scored.tolist(), tokens.parts) == ([False] + [True] * (len(tokens.ids) - 1), [asked])


def test_an_empty_prompt_without_a_prefix_is_an_error_that_names_the_cure() -> None:
    with pytest.raises(RowError, match=r"the prompt is empty.*set score\.prefix to bos or bos_or_eos"):
        made("", "x", prefix=None)
    no_bos = Tokenizer(sentencepiece_like(bpe=True)._hf.__class__(tokenizer_object=sentencepiece_like(bpe=True)._hf.backend_tokenizer))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RowError, match=r"set score\.prefix to bos_or_eos$"):
        CompletionEncoder(no_bos, None, None, "error").encode(ROW, Text(""), ["x"])


@pytest.mark.parametrize("prompt", ["The king", "The king\n", ""])
def test_an_empty_completion_is_an_error(prompt: str) -> None:
    with pytest.raises(RowError, match="the completion is empty") as refused:
        made(prompt, "")
    assert refused.value.stage == "tokenize"
    with pytest.raises(RowError, match="the completion at index 1 of 2 is empty"):
        made(prompt, "is", "")


def test_tokens_joined_across_the_border_give_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("mlx_bulk"), "warning", lambda text, *values: said.append(text % values))
    encoder = CompletionEncoder(demo(), BOS, None, "error")
    encoder.encode(ROW, Text("The king"), [" is"])
    assert not said
    encoder.encode(Row(8, "l", {}), Text("The ki"), ["ng is gone"])
    tokens = encoder.encode(ROW, Text("The ki"), ["ng is dead"]).completions[0]
    assert pieces(tokens, False) == ["", "The", " king", " is"]  # as many as "The ki" alone has
    assert (pieces(tokens, True), tokens.bytes, tokens.scored_bytes) == ([" dead"], 10, 5)
    assert len(said) == 1
    assert said[0].startswith("row 8: the tokenizer joins the prompt's last characters")


def test_where_nothing_is_left_to_score_the_row_fails() -> None:
    assert [len(demo().encode(text).ids) for text in ("The ki", "The king")] == [4, 3]
    with pytest.raises(RowError, match=r"nothing is left to score: .* as many tokens as the prompt alone, 4"):
        made("The ki", "ng")


PROMPT, COMPLETION, N = "The king is dead and the queen", " is in the town", 5  # tokens of the completion


def test_what_fits_to_the_token_is_not_cut() -> None:
    whole = made(PROMPT, COMPLETION)[0]
    n = len(whole.ids)
    assert not made(PROMPT, COMPLETION, context=n - 1)[0].truncated
    with pytest.raises(
        RowError, match=rf"the prompt has \d+ tokens, the completion {N}, and the context takes {n - 2} and one more"
    ) as refused:
        made(PROMPT, COMPLETION, context=n - 2)
    assert refused.value.stage == "too_long"


@pytest.mark.parametrize("context", [5, 6, 7])
def test_only_the_prompt_is_cut(context: int) -> None:
    whole = made(PROMPT, COMPLETION)[0]
    prompt, completion = whole.ids[:-N].tolist(), whole.ids[-N:].tolist()
    keep = context + 1 - N
    left = made(PROMPT, COMPLETION, context=context, too_long="truncate_left")[0]
    assert left.ids.tolist() == [*([BOS, *prompt[len(prompt) - keep + 1 :]] if keep > 1 else prompt[-1:]), *completion]
    right = made(PROMPT, COMPLETION, context=context, too_long="truncate_right")[0]
    assert right.ids.tolist() == prompt[:keep] + completion
    for tokens in (left, right):
        assert tokens.truncated
        assert tokens.scored.tolist() == [False] * keep + [True] * N
        assert tokens.scored_bytes == tokens.bytes == len(COMPLETION)
        assert [tokens.text[at] for at in tokens.offsets[-N:]] == list("    w")  # offsets are those of the uncut text


@pytest.mark.parametrize("too_long", ["error", "truncate_left", "truncate_right"])
def test_a_completion_that_is_longer_than_the_context_is_never_cut(too_long: str) -> None:
    with pytest.raises(RowError, match=f"the completion has {N} tokens, and the context takes {N - 1}; it is never cut"):
        made(PROMPT, COMPLETION, context=N - 1, too_long=too_long)


def test_completions_of_one_prompt_follow_the_same_tokens() -> None:
    short, long = made(PROMPT, " is", " is in the town and", context=8, too_long="truncate_left")
    assert len(long.ids) == 9
    assert short.ids[~short.scored].tolist() == long.ids[~long.scored].tolist()
    assert short.truncated
    assert long.truncated
