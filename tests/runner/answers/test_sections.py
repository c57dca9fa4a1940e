"""Tests where sections begin and end, and which of them are closed."""

import pytest
from mlx_bulk.runner.answers.sections import find_sections, literal

MARKS = [literal("reasoning", "<think>", "</think>"), literal("tools", "<call>", "</call>")]


def cut(text: str) -> list[tuple[str, str, bool]]:
    return [(each.kind, text[each.inner : each.stop], each.closed) for each in find_sections(text, MARKS)]


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("", []),
        ("plain", [("content", "plain", True)]),
        ("<think>a</think>b", [("reasoning", "a", True), ("content", "b", True)]),
        ("<think>a", [("reasoning", "a", False)]),
        ("a</think>b", [("reasoning", "a", True), ("content", "b", True)]),
        ("</think>b", [("reasoning", "", True), ("content", "b", True)]),
        ("<call>x</call><call>y", [("tools", "x", True), ("tools", "y", False)]),
        # A mark inside a call is a part of the call, and a call inside reasoning that ends is a part of the reasoning.
        ("<call><think></call>b", [("tools", "<think>", True), ("content", "b", True)]),
        ("<think>a<call>x</call></think>b", [("reasoning", "a<call>x</call>", True), ("content", "b", True)]),
        # Reasoning without an end of its own ends where a call begins.
        ("<think>a<call>x</call>", [("reasoning", "a", True), ("tools", "x", True)]),
        ("<think>a</think>b<think>c</think>", [("reasoning", "a", True), ("content", "b", True), ("reasoning", "c", True)]),
        ("a<thi", [("content", "a<thi", True)]),
    ],
)
def test_sections(text: str, sections: list[tuple[str, str, bool]]) -> None:
    assert cut(text) == sections


def test_sections_and_their_marks_are_the_whole_text() -> None:
    text = "a<think>b</think>c<call>d</call>e<call>f"
    assert "".join(text[each.start : each.end] for each in find_sections(text, MARKS)) == text


def test_a_section_without_an_end_mark_goes_to_the_end_of_the_text() -> None:
    (section,) = find_sections("[CALLS]a[CALLS]b", [literal("tools", "[CALLS]", "")])
    assert (section.inner, section.stop, section.closed) == (7, 16, False)
