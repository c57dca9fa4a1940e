"""Follows texts under grammars, with the demo's tokenizer."""

import functools
import json
from typing import Any

import numpy as np
from mlx_bulk.runner.core.grammar_spec import GrammarSpec
from mlx_bulk.runner.core.guide import Guide
from mlx_bulk.runner.grammar.grammars import Grammars
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...checkpoints import BOS, EOS, VOCABULARY
from .small_tokenizers import demo

WORDS = -(-VOCABULARY // 32)
ENDS = frozenset([BOS, EOS])


@functools.cache
def demo_grammars() -> Grammars:
    return Grammars(demo(), VOCABULARY, ENDS)


def schema(value: dict[str, Any], **rules: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value), **rules)


def choice(*texts: str) -> GrammarSpec:
    return GrammarSpec("choice", json.dumps(texts))


def allowed(guide: Guide, words: int = WORDS) -> list[int]:
    """The ids that a guide allows next."""
    bits = np.full(words, -1, np.int32)
    assert guide.fill(bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def follow(guide: Guide, text: str, tokenizer: Tokenizer | None = None, words: int = WORDS) -> bool:
    """Draws a text's tokens one by one; returns False at the first that is not allowed."""
    for token in (tokenizer or demo()).encode_text(text).ids.tolist():
        if token not in allowed(guide, words):
            return False
        guide.push(token)
    return True


def takes(spec: GrammarSpec, text: str, grammars: Grammars | None = None) -> bool:
    """Whether a completion under ``spec`` can be exactly ``text``, and end there."""
    guide = (grammars or demo_grammars()).compiled(spec).start()
    return follow(guide, text) and guide.complete is True and EOS in allowed(guide)
