"""Converts token ids with logprobs to the two shapes of OpenAI's API: completions and chat completions.

Every sampled token is there, also the one that ended the completion. Knows one record and a token's text; no files.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ...runner.text.token_offsets import token_text

Json = dict[str, Any]
Spelled = Callable[[int], tuple[str, list[int]]]

_UNLIKELY = -9999.0  # OpenAI's value for a token of probability 0; JSON knows no infinity
_LEGACY = "bytes:"


def openai_spelling(token_bytes: Callable[[int], bytes]) -> Spelled:
    r"""Token id -> its text and its bytes; bytes that are no UTF-8 stand as ``\xe2`` in the text. Remembers the tokens it has seen."""

    @cache
    def spell(token: int) -> tuple[str, list[int]]:
        content = token_bytes(token)
        return token_text(content), list(content)

    return spell


def chat_logprobs(record: Json, spell: Spelled) -> Json:
    """Returns a completion's logprobs as ``choices[].logprobs`` of a chat completion; ``record`` has the run's columns."""
    content: list[Json] = []
    top = _top(record, "")
    for token, logprob, (top_ids, top_logprobs) in zip(record["completion_ids"], record["logprobs"], top, strict=True):
        alternatives = [_chat_token(spell, other, value) for other, value in zip(top_ids, top_logprobs, strict=True)]
        content.append({**_chat_token(spell, token, logprob), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def completion_logprobs(record: Json, spell: Spelled, *, prompt: bool, completion: bool) -> Json:
    """Returns logprobs as ``choices[].logprobs`` of a completion: of the ``prompt`` (echo), of the ``completion``, or of both.

    Offsets are code points in the choice's text before a stop string was cut off. A position's alternatives are the recorded ones
    and the token itself; where two have the same text, the likelier one stays.
    """
    shape: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if prompt:
        _extend(shape, record, "prompt_", spell, 0)
    if completion:
        _extend(shape, record, "", spell, len(record["prompt"]) if prompt else 0)
    if not any(shape["top_logprobs"]):
        shape["top_logprobs"] = None
    return shape


def fill_first(shape: Json) -> None:
    """Puts 0 and no alternatives at the first token of an echoed prompt, which has no logprob: OpenAI's own types take no null there."""
    shape["token_logprobs"][0] = 0.0
    if shape["top_logprobs"] is not None:
        shape["top_logprobs"] = [{} if of is None else of for of in shape["top_logprobs"]]


def prompt_logprobs(record: Json, spell: Spelled, most: int) -> list[Json | None] | None:
    """Returns the prompt's logprobs as vLLM writes them: for each position its token and the ``most`` likeliest, by token id.

    The first token has none. A rank is null where the token is not among the recorded alternatives.
    """
    if record.get("prompt_logprobs") is None:
        return None
    positions: list[Json | None] = []
    for token, logprob, (top_ids, top_logprobs) in zip(
        record["prompt_ids"], record["prompt_logprobs"], _top(record, "prompt_"), strict=True
    ):
        if logprob is None:
            positions.append(None)
            continue
        ranked = list(enumerate(zip(top_ids, top_logprobs, strict=True), start=1))
        rank = next((at for at, (other, _) in ranked if other == token), None)
        found = {str(token): _ranked(spell, token, logprob, rank)}
        found |= {str(other): _ranked(spell, other, value, at) for at, (other, value) in ranked[:most] if other != token}
        positions.append(found)
    return positions


def _ranked(spell: Spelled, token: int, logprob: float, rank: int | None) -> Json:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": spell(token)[0]}


def _extend(shape: Json, record: Json, prefix: str, spell: Spelled, start: int) -> None:
    ids = record[f"{prefix or 'completion_'}ids"]
    logprobs = record[f"{prefix}logprobs"]
    shape["tokens"] += [_legacy(spell, token) for token in ids]
    shape["token_logprobs"] += map(_finite, logprobs)
    shape["text_offset"] += [start + offset for offset in record[f"{prefix}text_offset"]]
    for token, logprob, (top_ids, top_logprobs) in zip(ids, logprobs, _top(record, prefix), strict=True):
        shape["top_logprobs"].append(_alternatives(spell, token, logprob, top_ids, top_logprobs) if top_ids else None)


def _alternatives(spell: Spelled, token: int, logprob: float, top_ids: list[int], top_logprobs: list[float]) -> Json:
    by_text: Json = {}
    for other, value in zip([*top_ids, token], [*top_logprobs, logprob], strict=True):
        by_text.setdefault(_legacy(spell, other), _finite(value))
    return by_text


def _top(record: Json, prefix: str) -> Iterable[tuple[list[int], list[float]]]:
    """Yields the alternatives of each position; none where the record has none (as at the first token of a prompt)."""
    count = len(record[f"{prefix or 'completion_'}ids"])
    ids, logprobs = (record.get(f"{prefix}{name}") or [None] * count for name in ("top_ids", "top_logprobs"))
    return ((of or [], values or []) for of, values in zip(ids, logprobs, strict=True))


def _chat_token(spell: Spelled, token: int, logprob: float) -> Json:
    text, content = spell(token)
    return {"token": text, "bytes": content, "logprob": _finite(logprob)}


def _legacy(spell: Spelled, token: int) -> str:
    """Returns a token's name in the completions API: bytes that are no UTF-8 get a prefix."""
    text, content = spell(token)
    return text if text.encode() == bytes(content) else _LEGACY + text


def _finite(logprob: float | None) -> float | None:
    return _UNLIKELY if logprob == float("-inf") else logprob
