"""A record's tokens as the page's browser shows them: text, logprob, rank, entropy, and the alternatives where they are stored.

Knows one record and how a token reads; no files. Without a tokenizer a token whose text is not in the record stands as its id.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ...runner.core.arrays import Ids
from ...runner.text.tokenizer import token_text

Spell = Callable[[int], str]
Token = list[Any]  # [text, logprob, rank, entropy, [[text, logprob], …]], short of what is null at its end

_PART = re.compile(r"^(?:\\x[0-9a-f]{2})+$")

MOST = 320  # tokens of a text that are shown


def numbered(token: int) -> str:
    """How a token reads of which the id alone is known."""
    return f"#{token}"


def token_spelling(token_bytes: Callable[[int], bytes]) -> Spell:
    """Returns a function that shows a token by its bytes, or by its id where it has none."""
    return lambda token: token_text(token_bytes(token)) or numbered(token)


def shown_tokens(record: dict[str, Any], prefix: str, text: str | None, spell: Spell, around: int | None = None) -> tuple[list[Token], int]:
    """The tokens of a record's text, and where in it the first of them stands: at most MOST, those about ``around`` where it is said.

    prefix: of the columns, "" or "prompt_" of a generation, "token" of a scored text. text: that the tokens stand for, uncut; None
    where it is not known.
    """
    ids, logprobs, prefix = _columns(record, prefix)
    start = 0 if around is None else max(0, min(around - MOST // 2, len(ids) - MOST))
    labels = _texts(ids, record.get(f"{prefix}text_offset"), text, spell)
    figures = [record.get(f"{prefix}{name}") or [None] * len(ids) for name in ("ranks", "entropies", "top_ids", "top_logprobs")]
    found: list[Token] = []
    for at in range(start, min(start + MOST, len(ids))):
        rank, entropy, others, theirs = (values[at] for values in figures)
        alternatives = [[spell(other), number(value)] for other, value in zip(others or [], theirs or [], strict=True)]
        token: Token = [labels[at], number(logprobs[at]), rank, number(entropy), alternatives or None]
        while len(token) > 1 and token[-1] is None:
            token.pop()
        found.append(token)
    return found, start


def number(value: float | None) -> float | str | None:
    """A figure as JSON has it: three digits are enough to look at; what JSON does not know as text."""
    if value is None or math.isnan(value):
        return None
    return round(value, 3) if math.isfinite(value) else "−∞" if value < 0 else "∞"


def _columns(record: dict[str, Any], prefix: str) -> tuple[list[int], list[float | None], str]:
    """Ids and logprobs, and what the names of the other columns begin with."""
    if prefix == "token":
        return record["token_ids"], record["token_logprobs"], ""
    ids = record[f"{prefix or 'completion_'}ids"]
    return ids, record.get(f"{prefix}logprobs") or [None] * len(ids), prefix


def _texts(ids: Sequence[int], offsets: Sequence[int] | None, text: str | None, spell: Spell) -> list[str]:
    """How each token reads: its stretch of the text, a special one its name; empty where it is a part of a character that others end."""
    if text is None or offsets is None:
        return [spell(token) for token in ids]
    ends = [*offsets[1:], len(text)]
    return [text[start:end] or _PART.sub("", spell(token)) for token, start, end in zip(ids, offsets, ends, strict=True)]


def decoded(decode: Callable[[Ids], str] | None, ids: Sequence[int]) -> str | None:
    """The text of token ids; None where there is nothing to decode them with."""
    import numpy as np

    return None if decode is None else decode(np.array(ids, np.int32))
