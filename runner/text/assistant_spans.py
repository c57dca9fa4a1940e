"""Which tokens of a rendered chat are the assistant's: the template marks them with {% generation %}, a retokenization checks it.

Works on a Hugging Face tokenizer's template and on a function that turns text into ids; knows no rows and no files.

    text     <bos>user: Hi\\nassistant:  Hello<eos> \\n        {% generation %} around " Hello<eos>"
    spans                               |..........|         code points of the text
    tokens                              |..........|         their tokens, whole ones only
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.arrays import Ids
from ..core.errors import RowError
from ..core.requests import Prompt

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
Span = tuple[int, int]


@dataclass(slots=True, frozen=True)
class Turns:
    """A rendered chat, and where its assistant's turns lie: ``spans`` in code points of the text, ``tokens`` in its ids.

    said: the spans less the text of special tokens (``<|im_end|>``), which nobody wrote; a turn can fall into several.
    """

    prompt: Prompt
    spans: tuple[Span, ...]
    tokens: tuple[Span, ...]
    said: tuple[Span, ...]


def marks_turns(template: str) -> bool:
    """True when a chat template says which text is the assistant's."""
    return GENERATION.search(template) is not None


def render_chat(hf: Any, template: str, arguments: dict[str, Any], messages: list[dict[str, Any]]) -> tuple[str, tuple[Span, ...]]:
    """The chat's text and the spans of the assistant's turns in it; empty ones are left out.

    Raises RowError where the template refuses the messages.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    said = [{name: value for name, value in message.items() if value is not None} for message in messages]
    try:
        texts, found = render_jinja_template(
            [said], chat_template=template, return_assistant_tokens_mask=True, **{**hf.special_tokens_map, **arguments}
        )
    except Exception as error:  # templates raise what they like
        raise RowError("template", f"the chat template refuses the messages: {error}") from error
    spans: list[Span] = found[0]  # pyright: ignore[reportAssignmentType] - it is annotated as a str
    return str(texts[0]), tuple((start, end) for start, end in spans if end > start)


def token_spans(text: str, ids: Ids, spans: Sequence[Span], encode: Callable[[str], Ids]) -> tuple[Span, ...]:
    """The spans in tokens: ``ids`` [T] are those of ``text``, and ``encode`` turns text into ids.

    At each border the text before it, tokenized alone, must be a beginning of ``ids``: that is what the model has read when
    the turn begins. Raises RowError naming the turn where a token lies across a border.
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
    """The spans less the text of the tokens whose ids are ``special``; empty ones are left out."""
    ends = [*prompt.offsets[1:].tolist(), len(prompt.text)]
    starts = prompt.offsets.tolist()
    cut = [(starts[i], ends[i]) for i, token in enumerate(prompt.ids.tolist()) if token in special]
    found: list[Span] = []
    for start, end in spans:
        inside = [(left, right) for left, right in cut if start <= left and right <= end]
        found += zip([start, *(right for _, right in inside)], [*(left for left, _ in inside), end], strict=True)
    return tuple((start, end) for start, end in found if end > start)
