"""Checks how Hugging Face tokenizers encode: whether two give the same ids, or the first difference; whether one changes texts first.

Jobs that compare two models need the same ids. Tokenizers are compared by their tokens, by their rules to split text, and by the ids of
a probe text. Tokens that scoring does not use (EOS, padding) may differ, as between a base model and its chat model.
"""

import json
from functools import cache
from typing import Any

PROBE = "Hello  world, it's 12345.\n\n\tdef f(x): return 'café' # 東京 🙂\r\n  <s> İ ﬁ e\u0301 "
PARTS = {"normalizer": "normalize text", "pre_tokenizer": "split text into words"}


def tokenizer_difference(ours: Any, theirs: Any) -> str | None:
    """Describes the first difference, or returns None if both give the same ids for any text. ``ours`` is the model's tokenizer."""
    return _tokens(ours, theirs) or _special(ours, theirs) or _rules(ours, theirs) or _probe(ours, theirs)


def _tokens(ours: Any, theirs: Any) -> str | None:
    mine, other = ({i: token for token, i in hf.get_vocab().items()} for hf in (ours, theirs))
    wrong = min((i for i in mine.keys() | other.keys() if mine.get(i) != other.get(i)), default=None)
    if wrong is None:
        return None
    sizes = f"it has {len(other):,} tokens and the model's {len(mine):,}; " if len(mine) != len(other) else ""
    return f"{sizes}the first that differs is token {wrong}: {_shown(other.get(wrong))} there, {_shown(mine.get(wrong))} here"


def _special(ours: Any, theirs: Any) -> str | None:
    if ours.bos_token_id != theirs.bos_token_id:
        return f"its BOS is {_named(theirs)} and the model's {_named(ours)}"
    mine, other = ({i for i, token in hf.added_tokens_decoder.items() if token.special} for hf in (ours, theirs))
    if not (unlike := mine ^ other):
        return None
    first = min(unlike)
    words = ("a special token here and plain text there", "plain text here and a special token there")[first in other]
    return f"token {first}, {_shown(ours.convert_ids_to_tokens(first))}, is {words}"


def _rules(ours: Any, theirs: Any) -> str | None:
    if not (ours.is_fast and theirs.is_fast):
        return None
    mine, other = (json.loads(hf.backend_tokenizer.to_str(), object_hook=_without_offsets) for hf in (ours, theirs))
    for part, does in PARTS.items():
        if mine[part] != other[part]:
            return f"they {does} differently ({part} in tokenizer.json: {_shown(other[part])} there, {_shown(mine[part])} here)"
    if mine["model"].get("merges") != other["model"].get("merges"):
        return "they join pieces in another order (merges in tokenizer.json)"
    unlike = sorted(k for k in mine["model"].keys() | other["model"].keys() if mine["model"].get(k) != other["model"].get(k))
    return f"their models differ in {', '.join(unlike)} (tokenizer.json)" if unlike else None


def _probe(ours: Any, theirs: Any) -> str | None:
    mine, other = (hf(PROBE)["input_ids"] for hf in (ours, theirs))
    if mine == other:
        return None
    at = next((i for i, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]), min(len(mine), len(other)))
    return f"for the text {PROBE!r} their ids part at token {at}: {other[at : at + 5]} there, {mine[at : at + 5]} here"


def _without_offsets(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part of tokenizer.json without the key that only changes offsets."""
    return {key: value for key, value in part.items() if key != "trim_offsets"}


def _named(hf: Any) -> str:
    return "none" if hf.bos_token_id is None else f"token {hf.bos_token_id}, {_shown(hf.bos_token)}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return "none" if value is None else text if len(text) <= 80 else f"{text[:80]}…"


def encodes_plainly(kind: type) -> bool:
    """Returns True where the class leaves it to its tokenizers library to encode; one of a model's own code may change the text first."""
    from transformers import PreTrainedTokenizerFast

    return all(getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name) for name in ("__call__", "_encode_plus"))


@cache
def decodes_plainly(kind: type) -> bool:
    """Returns True where the class leaves it to its tokenizers library to decode, as long as no spaces are cleaned up."""
    from transformers import PreTrainedTokenizerFast

    return all(getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name) for name in ("decode", "_decode"))
