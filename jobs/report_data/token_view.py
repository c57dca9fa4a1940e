"""Shows a record's tokens for the page's browser: text, logprob, rank, entropy, and stored alternatives.

Knows one record and how to show a token; no files. Without a tokenizer a token whose text is not in the record is shown by its id.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ...runner.core.arrays import Ids
from ...runner.text.token_offsets import token_text

Spell = Callable[[int], str]
Token = list[Any]  # [text, logprob, rank, entropy, [[text, logprob], …]], without nulls at its end

_PART = re.compile(r"^(?:\\x[0-9a-f]{2})+$")

MOST = 320  # tokens of a text that are shown


def numbered(token: int) -> str:
    """Shows a token of which only the id is known."""
    return f"#{token}"


def token_spelling(token_bytes: Callable[[int], bytes]) -> Spell:
    """Returns a function that shows a token by its bytes, or by its id where it has none."""
    return lambda token: token_text(token_bytes(token)) or numbered(token)


def shown_tokens(record: dict[str, Any], prefix: str, text: str | None, spell: Spell, around: int | None = None) -> tuple[list[Token], int]:
    """Returns at most MOST tokens of a record's text, and the index of the first; those about ``around`` where it is given.

    prefix: of the columns, "" or "prompt_" of a generation, "token" of a scored text. text: the whole text of the tokens, None
    where it is not known.
    """
    ids, logprobs, prefix = _columns(record, prefix)
    start = 0 if around is None else max(0, min(around - MOST // 2, len(ids) - MOST))
    labels = _texts(ids, record.get(f"{prefix}text_offset"), text, spell)
    figures = [record.get(f"{prefix}{name}") or [None] * len(ids) for name in ("ranks", "entropies", "top_ids", "top_logprobs")]
    tokens: list[Token] = []
    for at in range(start, min(start + MOST, len(ids))):
        rank, entropy, others, theirs = (values[at] for values in figures)
        alternatives = [[spell(other), number(value)] for other, value in zip(others or [], theirs or [], strict=True)]
        token: Token = [labels[at], number(logprobs[at]), rank, number(entropy), alternatives or None]
        while len(token) > 1 and token[-1] is None:
            token.pop()
        tokens.append(token)
    return tokens, start


def number(value: float | None) -> float | str | None:
    """Returns a figure for JSON with three decimals; infinities, which JSON does not know, as text."""
    if value is None or math.isnan(value):
        return None
    return round(value, 3) if math.isfinite(value) else "−∞" if value < 0 else "∞"


def _columns(record: dict[str, Any], prefix: str) -> tuple[list[int], list[float | None], str]:
    """Returns ids, logprobs, and the prefix of the other columns' names."""
    if prefix == "token":
        return record["token_ids"], record["token_logprobs"], ""
    ids = record[f"{prefix or 'completion_'}ids"]
    return ids, record.get(f"{prefix}logprobs") or [None] * len(ids), prefix


def _texts(ids: Sequence[int], offsets: Sequence[int] | None, text: str | None, spell: Spell) -> list[str]:
    """Returns each token's part of the text, or a special token's name; empty for a part of a character that later tokens end."""
    if text is None or offsets is None:
        return [spell(token) for token in ids]
    ends = [*offsets, len(text)][1:]
    return [text[start:end] or _PART.sub("", spell(token)) for token, start, end in zip(ids, offsets, ends, strict=True)]


def decoded(decode: Callable[[Ids], str] | None, ids: Sequence[int]) -> str | None:
    """Decodes token ids to text; None without ``decode``."""
    import numpy as np

    return None if decode is None else decode(np.array(ids, np.int32))
