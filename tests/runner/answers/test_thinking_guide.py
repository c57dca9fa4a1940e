"""Tests that reasoning ends after its budget, and that a grammar begins behind it: on characters as tokens, by drawn and forced ids."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from mlx_bulk.runner.answers.thinking_guide import ThinkingGuidance, ThinkingGuide
from numpy.typing import NDArray

VOCABULARY = 139  # ASCII, the marks below, and no multiple of 32
BEGIN, END, CALL, CALL_END, EOS = 128, 129, 130, 131, 138
NAMES = {BEGIN: "<think>", END: "</think>", CALL: "<call>", CALL_END: "</call>", EOS: "<eos>"}
WORDS = (VOCABULARY + 31) // 32


def text(token: int) -> str:
    return NAMES.get(token) or (chr(token) if token < 128 else "?")


def ids(said: str) -> list[int]:
    for token, name in NAMES.items():
        said = said.replace(name, chr(0xE000 + token))
    return [ord(char) - 0xE000 if ord(char) >= 0xE000 else ord(char) for char in said]


@dataclass
class Exactly:
    """A grammar of one text: a guide that allows its next character, and EOS at its end."""

    said: str

    def start(self) -> "ExactlyGuide":
        return ExactlyGuide(ids(self.said))


class ExactlyGuide:
    error = None

    def __init__(self, left: list[int]):
        self.left = left

    @property
    def complete(self) -> bool:
        return not self.left

    def fill(self, into: NDArray[np.int32]) -> bool:
        into[:] = 0
        token = self.left[0] if self.left else EOS
        into.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        return True

    def push(self, token: int) -> None:
        assert token == (self.left.pop(0) if self.left else EOS)


GUIDANCE = ThinkingGuidance(
    begins="<think>",
    ends="</think>",
    tool=("<call>", "</call>"),
    budget=None,
    message=(),
    closing=(END, 10, 10),
    opening=(BEGIN,),
    open=False,
    blanks=frozenset({10, 32}),
    stops=frozenset({EOS}),
    vocabulary=VOCABULARY,
    text=text,
)


def allowed(guide: ThinkingGuide) -> set[int]:
    mask = np.zeros(WORDS, np.int32)
    if not guide.fill(mask):
        return set(range(VOCABULARY))
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[VOCABULARY:].any(), "no id beyond the vocabulary"
    return set(np.flatnonzero(bits).tolist())


def drawn(guidance: ThinkingGuidance, wishes: str, most: int = 200) -> tuple[str, list[bool]]:
    """The text where the model wishes these tokens one by one and takes what is forced in their place; and what was forced."""
    guide, said, forced, left = guidance.start(), list[int](), list[bool](), ids(wishes)
    for _ in range(most):
        may = allowed(guide)
        assert may, "at least one id is allowed"
        assert guide.error is None
        forced.append(len(may) == 1 and guide.is_forced)
        token = min(may) if forced[-1] or not left else left.pop(0)
        assert token in may, f"{text(token)!r} after {''.join(map(text, said))!r}"
        guide.push(token)
        said.append(token)
        if not left and not guide.is_forced:
            break
    assert guidance.forced(np.array(said, np.int32)).tolist() == forced, "the same is found when it is followed again"
    return "".join(map(text, said)), forced


@pytest.mark.parametrize("budget", [0, 1, 64])
def test_reasoning_that_the_prompt_opens_ends_after_its_budget(budget: int) -> None:
    said, forced = drawn(replace(GUIDANCE, open=True, opening=(), budget=budget), "x" * 70)
    assert said == "x" * budget + "</think>\n\n" + "x" * (70 - budget)
    assert sum(forced) == 3


def test_a_message_is_forced_before_the_end() -> None:
    said, forced = drawn(replace(GUIDANCE, open=True, budget=2, message=tuple(ids("Stop.\n"))), "abcd")
    assert (said, sum(forced)) == ("abStop.\n</think>\n\ncd", 9)


def test_reasoning_that_ends_in_time_is_left_alone() -> None:
    said, forced = drawn(replace(GUIDANCE, open=True, budget=4), "abc</think>d")
    assert (said, any(forced)) == ("abc</think>d", False)


def test_reasoning_that_the_model_begins_is_counted_from_its_mark() -> None:
    guidance = replace(GUIDANCE, budget=2)
    assert drawn(guidance, "abcdefg")[0] == "abcdefg"
    assert drawn(guidance, "ab<think>cdef")[0] == "ab<think>cd</think>\n\nef"
    assert drawn(replace(guidance, budget=0), "<think>cd")[0] == "<think></think>\n\ncd"


def test_a_second_opening_after_a_forced_end_closes_at_once_without_the_message() -> None:
    guidance = replace(GUIDANCE, open=True, budget=1, message=tuple(ids("!")))
    assert drawn(guidance, "abc<think>d")[0] == "a!</think>\n\nbc<think></think>\n\nd"


def test_a_second_opening_uses_what_is_left_of_the_budget() -> None:
    assert drawn(replace(GUIDANCE, budget=3), "<think>ab</think>c<think>def")[0] == "<think>ab</think>c<think>d</think>\n\nef"


def test_no_end_is_forced_inside_a_call_of_a_tool() -> None:
    said, forced = drawn(replace(GUIDANCE, open=True, budget=2), "a<call>bcdef</call>g")
    assert (said, any(forced)) == ("a<call>bcdef</call>g", False)


def test_a_grammar_begins_behind_the_reasoning_and_blanks() -> None:
    guidance = replace(GUIDANCE, open=True, inner=Exactly("{}"))
    guide = guidance.start()
    assert allowed(guide) == set(range(VOCABULARY)) - {EOS}, "reasoning can not end the text"
    assert drawn(guidance, "hm</think>\n\n{}<eos>")[0] == "hm</think>\n\n{}<eos>"
    for token in ids("hm</think>"):
        guide.push(token)
    assert allowed(guide) == {*ids("{\n ")}
    assert guide.complete is False
    for token in ids("\n{"):
        guide.push(token)
    assert allowed(guide) == {*ids("}")}
    guide.push(*ids("}"))
    assert guide.complete is True


def test_blanks_behind_reasoning_come_to_an_end() -> None:
    guide = replace(GUIDANCE, open=True, inner=Exactly("{}")).start()
    guide.push(END)
    blanks = 0
    while 10 in allowed(guide):
        guide.push(10)
        blanks += 1
    assert blanks == 4
    assert allowed(guide) == {*ids("{")}


def test_a_budget_and_a_grammar() -> None:
    said, forced = drawn(replace(GUIDANCE, open=True, budget=2, inner=Exactly("{}")), "ab{}<eos>")
    assert (said, sum(forced)) == ("ab</think>\n\n{}<eos>", 3)


def test_a_model_that_may_reason_or_answer_at_once() -> None:
    guidance = replace(GUIDANCE, inner=Exactly("{}"))
    assert allowed(guidance.start()) == {BEGIN, *ids("{")}
    assert drawn(guidance, "{}<eos>")[0] == "{}<eos>"
    assert drawn(guidance, "<think>hm</think>{}<eos>")[0] == "<think>hm</think>{}<eos>"


def test_a_mark_of_several_tokens_is_written_to_its_end() -> None:
    guidance = replace(GUIDANCE, begins="[t]", opening=tuple(ids("[t]")), inner=Exactly("{}"))
    guide = guidance.start()
    guide.push(*ids("["))
    assert allowed(guide) == {*ids("t")}
    assert drawn(guidance, "[t]hm</think>{}<eos>")[0] == "[t]hm</think>{}<eos>"


def test_marks_inside_a_grammars_text_are_text() -> None:
    guidance = replace(GUIDANCE, opening=(), budget=0, inner=Exactly('{"a": "<think>"}'))
    assert drawn(guidance, '{"a": "<think>"}<eos>')[0] == '{"a": "<think>"}<eos>'


def test_without_a_grammar_there_is_no_verdict_on_the_text() -> None:
    guide = replace(GUIDANCE, open=True, budget=1).start()
    assert guide.complete is None
    assert guide.error is None
    assert len(allowed(guide)) == VOCABULARY


def test_a_grammar_that_writes_the_mark_itself_is_not_reasoning():
    said, forced = drawn(replace(GUIDANCE, budget=1, inner=Exactly("<think>abcdef")), "<think>abcdef<eos>")
    assert said == "<think>abcdef<eos>"
    assert not any(forced)  # ``drawn`` holds this against what is found when it is followed again
