"""Token ids with logprobs to the two shapes that OpenAI's API has for them: that of completions and that of chat completions.

Every token sampled is there, the one that ended the completion too. Knows one sample of a record and how a token reads; no files.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

Json = dict[str, Any]
Spelled = Callable[[int], tuple[str, list[int]]]

_UNLIKELY = -9999.0  # what OpenAI's API says for a token without a chance; JSON knows no infinity
_LEGACY = "bytes:"


def openai_spelling(token_bytes: Callable[[int], bytes]) -> Spelled:
    r"""Token id -> its text and its bytes; bytes that are no UTF-8 stand as ``\xe2`` in the text. Remembers the tokens it has seen."""

    @cache
    def spell(token: int) -> tuple[str, list[int]]:
        content = token_bytes(token)
        return content.decode("utf-8", "backslashreplace"), list(content)

    return spell


def chat_logprobs(record: Json, spell: Spelled) -> Json:
    """A completion's logprobs as ``choices[].logprobs`` of a chat completion has them; ``record`` by the contract's columns."""
    content: list[Json] = []
    top = _top(record, "")
    for token, logprob, (others, theirs) in zip(record["completion_ids"], record["logprobs"], top, strict=True):
        alternatives = [_chat_token(spell, other, value) for other, value in zip(others, theirs, strict=True)]
        content.append({**_chat_token(spell, token, logprob), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def completion_logprobs(record: Json, spell: Spelled, *, prompt: bool, completion: bool) -> Json:
    """The same as ``choices[].logprobs`` of a completion has them: of the ``prompt`` (echo), of the ``completion``, or of both.

    Offsets are code points in the choice's text as it was before a stop string was cut off. A position's alternatives are those
    recorded and the token itself; where two of them read alike, the likelier one stands.
    """
    found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if prompt:
        _extend(found, record, "prompt_", spell, 0)
    if completion:
        _extend(found, record, "", spell, len(record["prompt"]) if prompt else 0)
    if not any(found["top_logprobs"]):
        found["top_logprobs"] = None
    return found


def _extend(found: Json, record: Json, prefix: str, spell: Spelled, start: int) -> None:
    ids = record[f"{prefix or 'completion_'}ids"]
    logprobs = record[f"{prefix}logprobs"]
    found["tokens"] += [_legacy(spell, token) for token in ids]
    found["token_logprobs"] += map(_plain, logprobs)
    found["text_offset"] += [start + offset for offset in record[f"{prefix}text_offset"]]
    for token, logprob, (others, theirs) in zip(ids, logprobs, _top(record, prefix), strict=True):
        found["top_logprobs"].append(_alternatives(spell, token, logprob, others, theirs) if others else None)


def _alternatives(spell: Spelled, token: int, logprob: float, others: list[int], theirs: list[float]) -> Json:
    named: Json = {}
    for other, value in zip([*others, token], [*theirs, logprob], strict=True):
        named.setdefault(_legacy(spell, other), _plain(value))
    return named


def _top(record: Json, prefix: str) -> Iterable[tuple[list[int], list[float]]]:
    """The alternatives a position, none where the records hold none, or none for this position (the first of a prompt)."""
    count = len(record[f"{prefix or 'completion_'}ids"])
    ids, logprobs = (record.get(f"{prefix}{name}") or [None] * count for name in ("top_ids", "top_logprobs"))
    return ((of or [], values or []) for of, values in zip(ids, logprobs, strict=True))


def _chat_token(spell: Spelled, token: int, logprob: float) -> Json:
    text, content = spell(token)
    return {"token": text, "bytes": content, "logprob": _plain(logprob)}


def _legacy(spell: Spelled, token: int) -> str:
    """A token as completions name it: broken UTF-8 has a prefix."""
    text, content = spell(token)
    return text if text.encode() == bytes(content) else _LEGACY + text


def _plain(logprob: float | None) -> float | None:
    return _UNLIKELY if logprob == float("-inf") else logprob
