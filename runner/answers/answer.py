"""A finished completion, read: its reasoning, its answer and its calls of tools.

What cannot be read is never lost: it stays in the content, and ``error`` says why.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import first_line
from ..core.requests import Reading
from .completion_text import CompletionText
from .sections import Marks, TextSection, find_sections
from .tool_format import ToolFormat
from .tools import tool_names

CUT_OFF, UNKNOWN_TOOL = "cut off", "unknown tool"


@dataclass(slots=True, frozen=True)
class Call:
    """A call of a tool. arguments: JSON text of a mapping. id: the one that the model wrote, None where it wrote none."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(slots=True)
class Answer:
    """What a completion says. reasoning and content: None where there is none. error: what is wrong with its calls."""

    reasoning: str | None = None
    reasoning_tokens: int = 0
    content: str | None = None
    calls: list[Call] = field(default_factory=list[Call])
    error: str | None = None


@dataclass(frozen=True)
class AnswerReader:
    """Reads completions of one model. reasoning: the marks around its reasoning. format: how it writes calls; None where unknown."""

    reasoning: Marks | None
    format: ToolFormat | None

    @property
    def splits(self) -> bool:
        """True when it can tell reasoning from the rest."""
        return self.reasoning is not None or (self.format is not None and any(each.kind == "reasoning" for each in self.format.marks))

    def read(self, completion: CompletionText, reading: Reading) -> Answer:
        """Returns the parts of a completion. Raises nothing, whatever the model wrote."""
        before = len(reading.turn)
        whole = reading.turn + completion.text[: None if completion.ended else completion.stop]
        sections = [section for section in find_sections(whole, self._marks(reading)) if section.end > before]
        answer, pieces = Answer(), list[tuple[TextSection, str]]()
        for section in sections:
            shifted = _within(section, before, completion.stop)
            text = completion.without_special(shifted.inner, shifted.stop)
            if section.kind == "content":
                pieces.append((section, text))
            elif section.kind == "reasoning":
                answer.reasoning = "\n".join(part for part in (answer.reasoning, text.strip("\n")) if part is not None)
                answer.reasoning_tokens += completion.tokens(shifted.inner, shifted.stop)
            elif error := self._take_calls(answer, section, whole, before + completion.stop, completion.ended, reading):
                answer.error = answer.error or error
                pieces.append((section, completion.without_special(shifted.start, shifted.end)))
        if reading.single and len(answer.calls) > 1:
            answer.error = answer.error or f"{len(answer.calls) - 1} more calls, since parallel_tool_calls is false"
            del answer.calls[1:]
        answer.content = _joined(pieces, sections)
        if not answer.content.strip() and (answer.calls or answer.reasoning is not None):
            answer.content = None
        return answer

    def _marks(self, reading: Reading) -> list[Marks]:
        """Returns the marks that count for a row. A format's own marks of reasoning give way to those that are set or known."""
        marks = [] if self.format is None else self.format.marks
        marks = [each for each in marks if each.kind != "tools" or reading.calls]
        if not reading.reasoning or self.reasoning is not None:
            marks = [each for each in marks if each.kind != "reasoning"]
        return [*marks, self.reasoning] if reading.reasoning and self.reasoning is not None else marks

    def _take_calls(self, answer: Answer, section: TextSection, whole: str, stop: int, ended: bool, reading: Reading) -> str | None:
        """Adds the calls of a section to the answer. Returns why it has none that can be used, or what is wrong with them."""
        assert self.format is not None, "its marks were found"
        endless = next(each.ends is None for each in self.format.marks if each.kind == "tools")
        if not (section.closed or (endless and ended)):
            return CUT_OFF
        try:
            tools = list(reading.tools)
            found = [
                _call(each)
                for each in self.format.calls(whole[section.start : section.end], whole[section.inner : min(section.stop, stop)], tools)
            ]
        except Exception as error:  # a parser raises what it likes
            return f"not a call: {type(error).__name__}: {first_line(error, None)}"
        if not found:
            return "not a call: nothing was found in it"
        answer.calls += found
        known = reading.names or tool_names(tools)
        if reading.tools and any(call.name not in known for call in found):
            answer.error = answer.error or UNKNOWN_TOOL
        return None


def _call(found: Any) -> Call:
    """Returns what a parser found as a call. Raises ValueError or TypeError where it is none."""
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str) or not name:
        raise ValueError("a mapping with a name is expected")
    arguments = found.get("arguments", {})
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are a mapping are expected")
    name.encode()
    ident = found.get("id")
    return Call(name, _json(arguments), ident if isinstance(ident, str) and ident and ident.isprintable() else None)


def _json(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair is JSON, but no UTF-8
        text = json.dumps(arguments, allow_nan=False)
    return text


def _within(section: TextSection, before: int, stop: int) -> TextSection:
    """Returns a section's places in the completion alone, which begins at ``before`` and is read up to ``stop``."""
    start, inner, last, end = (min(max(0, at - before), stop) for at in (section.start, section.inner, section.stop, section.end))
    return TextSection(section.kind, start, inner, last, end, section.closed)


def _joined(pieces: list[tuple[TextSection, str]], sections: list[TextSection]) -> str:
    """Returns the pieces of content as one text, without the newlines beside what was taken out."""
    kept = {id(section) for section, _ in pieces}
    taken = {at for section in sections if id(section) not in kept for at in (section.start, section.end)}
    texts = list[str]()
    for section, text in pieces:
        left = text.lstrip("\n") if section.start in taken else text
        texts.append(left.rstrip("\n") if section.end in taken else left)
    return "".join(texts) if not taken else "\n".join(text for text in texts if text)
