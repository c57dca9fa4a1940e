"""What begins and ends a model's reasoning: the pair that mlx-lm knows by the vocabulary, if the chat template mentions it too.

The vocabulary alone can be wrong: tokens of one model are kept in another that never writes them.
"""

from dataclasses import dataclass
from typing import Literal

from ..text.tokenizer import Tokenizer

HARMONY = ("<|channel|>analysis<|message|>", "<|end|>")  # gpt-oss, of which mlx-lm has no marks


@dataclass(slots=True, frozen=True)
class ReasoningMarks:
    """The strings around reasoning. after: what the chat template writes behind the end: two newlines, or nothing."""

    begins: str
    ends: str
    after: str = ""


def find_reasoning_marks(setting: Literal["auto", "none"] | list[str], tokenizer: Tokenizer) -> ReasoningMarks | None:
    """Returns the marks that ``reasoning.marks`` gives, or for auto those of the checkpoint; None where there are none."""
    if setting == "none":
        return None
    template = tokenizer.template_text
    if not isinstance(setting, str):
        begins, ends = setting
    elif pair := next((pair for pair in (_by_vocabulary(tokenizer), HARMONY) if pair and all(mark in template for mark in pair)), None):
        begins, ends = pair
    else:
        return None
    newlines = any(f"{ends}{two}" in template for two in ("\n\n", r"\n\n"))
    return ReasoningMarks(begins, ends, "\n\n" if newlines else "")


def _by_vocabulary(tokenizer: Tokenizer) -> tuple[str, str] | None:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    if not tokenizer.template_text:
        return None
    try:
        known = TokenizerWrapper(tokenizer.hf)
    except Exception:  # a tokenizer of a model's own code may lack what it asks for: a run can do without
        return None
    return None if known.think_start is None or known.think_end is None else (known.think_start, known.think_end)
