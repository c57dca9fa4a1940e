"""Finds the assistant's tokens in a rendered chat. The template marks them with {% generation %}, and tokenizing again checks it.

text     <bos>user: Hi\\nassistant:  Hello<eos> \\n        {% generation %} around " Hello<eos>"
spans                               |..........|         code points of the text
tokens                              |..........|         their tokens, whole ones only
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..core.arrays import Ids
from ..core.errors import RowError
from ..core.requests import Prompt
from ..templates.chat_rendering import Span

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(slots=True, frozen=True)
class AssistantTurns:
    """A rendered chat and its assistant's turns: ``spans`` in code points of the text, ``tokens`` in its ids.

    text_spans: the spans without the text of special tokens (``<|im_end|>``), which nobody wrote. They can cut a turn into several.
    """

    prompt: Prompt
    spans: tuple[Span, ...]
    tokens: tuple[Span, ...]
    text_spans: tuple[Span, ...]


def marks_turns(template: str) -> bool:
    """Returns True when a chat template marks the assistant's text."""
    return GENERATION.search(template) is not None


def assistant_turns(text: str, spans: tuple[Span, ...], encode: Callable[[str], Prompt], special: Collection[int]) -> AssistantTurns:
    """Encodes a chat's ``text`` with the assistant's turns, ``spans`` of it. special: ids that nobody wrote. Raises as ``token_spans``."""
    prompt = encode(text)
    tokens = token_spans(text, prompt.ids, spans, lambda part: encode(part).ids)
    return AssistantTurns(prompt, spans, tokens, without_special(prompt, spans, special))


def token_spans(text: str, ids: Ids, spans: Sequence[Span], encode: Callable[[str], Ids]) -> tuple[Span, ...]:
    """Returns ``spans`` of ``text`` as spans of its tokens ``ids`` [T]. ``encode`` turns text into ids.

    At each border, the text before it must tokenize to the beginning of ``ids``, because that is what the model has read there. Raises
    RowError naming the turn if a token lies across a border.
    """

    def border(at: int, turn: int, which: str) -> int:
        before = encode(text[:at])
        if before.tolist() != ids[: len(before)].tolist():
            here = f"{text[max(0, at - 12) : at]!r} and {text[at : at + 12]!r}"
            cure = "move {% generation %} in the chat template to where a token ends"
            raise RowError("tokenize", f"at the {which} of the assistant's turn {turn} a token lies across the border of {here}; {cure}")
        return len(before)

    return tuple((border(start, turn, "start"), border(end, turn, "end")) for turn, (start, end) in enumerate(spans, 1))


def without_special(prompt: Prompt, spans: Sequence[Span], special: Collection[int]) -> tuple[Span, ...]:
    """Returns the spans without the text of tokens whose ids are ``special``, and without empty spans."""
    ends = [*prompt.offsets[1:].tolist(), len(prompt.text)]
    starts = prompt.offsets.tolist()
    cut = [(starts[i], ends[i]) for i, token in enumerate(prompt.ids.tolist()) if token in special]
    pieces: list[Span] = []
    for start, end in spans:
        inside = [(left, right) for left, right in cut if start <= left and right <= end]
        pieces += zip([start, *(right for _, right in inside)], [*(left for left, _ in inside), end], strict=True)
    return tuple((start, end) for start, end in pieces if end > start)
