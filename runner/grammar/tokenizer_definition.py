"""A tokenizer's definition (tokenizer.json) in the form that llguidance reads."""

import json
from typing import Any

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
