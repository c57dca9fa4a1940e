"""A tokenizer's definition (tokenizer.json) in the form that llguidance reads."""

import json
from typing import Any, cast

# What a Metaspace decoder does, as sentencepiece's tokenizers say it in steps.
_STEPS: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def readable(definition: str) -> str:
    """Returns the definition with a Metaspace decoder written as steps: llguidance finds the bytes of tokens by these alone."""
    if '"decoder":{"type":"Metaspace"' not in definition.replace(" ", ""):
        return definition
    values = json.loads(definition)
    return json.dumps({**values, "decoder": _STEPS}, ensure_ascii=False)


def without_marks(definition: str) -> str:
    """Returns the definition with names of marks (``<|im_end|>``) that no text has; their ids stay.

    Where a grammar forces a text, llguidance (1.9) has the tokenizer write it. A tokenizer takes the name of a mark for the mark, which the
    grammar then refuses. With other names it writes the text in ordinary tokens. A grammar that asks for marks by name needs the definition
    as it is.
    """
    values = json.loads(definition)
    model: dict[str, Any] = values["model"]
    changed = {token["content"]: "\0" + token["content"] for token in values.get("added_tokens") or [] if _is_mark(token)}
    for token in values.get("added_tokens") or []:
        token["content"] = changed.get(token["content"], token["content"])
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = changed.get(model["unk_token"], model["unk_token"])
    if isinstance(vocabulary := model.get("vocab"), dict):
        model["vocab"] = {changed.get(name, name): number for name, number in cast(dict[str, int], vocabulary).items()}
    elif isinstance(vocabulary, list):  # of names and scores
        model["vocab"] = [[changed.get(name, name), score] for name, score in cast(list[tuple[str, float]], vocabulary)]
    return json.dumps(values, ensure_ascii=False)


def _is_mark(token: dict[str, Any]) -> bool:
    """Returns whether llguidance takes an added token for a mark: not for a run of blanks, say."""
    name: str = token["content"]
    return bool(token.get("special")) or (name.startswith("<") and name.endswith(">"))
