"""Cuts a text into sections at the marks around them: reasoning, calls of tools, and the content between.

Reads no call: what is inside a section is left to the model's own parser. A section whose end is missing is known as open.

    Let me see.</think>It rains.<tool_call>{"name": …}</tool_call>
    reasoning          content  tools
"""

import re
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["content", "reasoning", "tools"]


class Match(Protocol):
    """Where a pattern was found."""

    def start(self) -> int:
        """Returns where it begins."""
        ...

    def end(self) -> int:
        """Returns where it ends."""
        ...


class Pattern(Protocol):
    """A compiled expression, of Python's own library or of another."""

    def search(self, string: str, pos: int) -> Match | None:
        """Returns the first match from ``pos`` on."""
        ...


@dataclass(slots=True, frozen=True)
class Marks:
    """What begins a section and what ends it. ends: None where only the end of the text does."""

    kind: Kind
    begins: Pattern
    ends: Pattern | None


@dataclass(slots=True, frozen=True)
class TextSection:
    """A stretch of a text: with its marks [start, end), without them [inner, stop). closed: its end was found."""

    kind: Kind
    start: int
    inner: int
    stop: int
    end: int
    closed: bool


def literal(kind: Kind, begins: str, ends: str) -> Marks:
    """Returns the marks of a section between two strings; an empty end is the end of the text."""
    return Marks(kind, re.compile(re.escape(begins)), re.compile(re.escape(ends)) if ends else None)


def find_sections(text: str, marks: list[Marks]) -> list[TextSection]:
    """Returns the sections of a text in their order, without empty content.

    An end of reasoning that nothing began ends what stands before it. A tool's mark ends reasoning that has no end of its own.
    """
    found: list[TextSection] = []
    reasoning = next((each for each in marks if each.kind == "reasoning"), None)
    at = 0
    while at <= len(text):
        opening = _first(text, at, marks)
        stray = reasoning.ends.search(text, at) if reasoning is not None and reasoning.ends is not None else None
        if stray is not None and (opening is None or stray.start() < opening[1].start()):
            found.append(TextSection("reasoning", at, at, stray.start(), stray.end(), True))
            at = stray.end()
            continue
        stop = len(text) if opening is None else opening[1].start()
        if stop > at:
            found.append(TextSection("content", at, at, stop, stop, True))
        if opening is None:
            break
        section = _section(text, marks, *opening)
        found.append(section)
        at = section.end if section.end > at else len(text) + 1
    return found


def _section(text: str, marks: list[Marks], own: Marks, begins: Match) -> TextSection:
    ends = own.ends.search(text, begins.end()) if own.ends is not None else None
    if ends is not None and ends.end() > ends.start():  # a pattern may also match the end of the text: that closes nothing
        return TextSection(own.kind, begins.start(), begins.end(), ends.start(), ends.end(), True)
    if own.kind == "reasoning":
        tool = _first(text, begins.end(), [each for each in marks if each.kind == "tools"])
        if tool is not None:
            return TextSection(own.kind, begins.start(), begins.end(), tool[1].start(), tool[1].start(), True)
    return TextSection(own.kind, begins.start(), begins.end(), len(text), len(text), False)


def _first(text: str, at: int, marks: list[Marks]) -> tuple[Marks, Match] | None:
    """Returns the marks whose beginning comes first, and it; of two at one place the longer one."""
    opens = [(each, match) for each in marks if (match := each.begins.search(text, at)) is not None]
    return min(opens, key=lambda pair: (pair[1].start(), -pair[1].end()), default=None)
