"""A completion's whole text: with the special tokens that its record leaves out, as parsers need them."""

from dataclasses import dataclass
from typing import Self

from ..core.arrays import Ids
from ..core.outcomes import Generated
from ..core.requests import Sampling
from ..text.tokenizer import Tokenizer


def ended_by_id(sampling: Sampling, outcome: Generated) -> bool:
    """Returns True when EOS or a stop id ended a completion; that id is its last."""
    return outcome.finish_reason == "stop" and (outcome.stop_reason is None or outcome.ids[-1] in sampling.stop_token_ids)


@dataclass(slots=True, frozen=True)
class CompletionText:
    """A completion's text with its special tokens.

    starts: [N], the code points before each token. special: [N], which tokens are. stop: where the answer ends in ``text``: before EOS
    or a stop string. ended: by EOS or a stop id.
    """

    text: str
    starts: Ids
    special: list[bool]
    stop: int
    ended: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, sampling: Sampling, outcome: Generated, length: int) -> Self:
        """Reads a completion's tokens. length: of its text as the record has it, without special tokens, in code points."""
        text, starts = tokenizer.spelled(outcome.ids)
        special = [token in tokenizer.special for token in outcome.ids.tolist()]
        if ended_by_id(sampling, outcome):
            return cls(text, starts, special, int(starts[-1]), ended=True)
        return cls(text, starts, special, _place(text, starts, special, length), ended=False)

    def without_special(self, start: int, stop: int) -> str:
        """Returns the text in [start, stop) without special tokens."""
        parts, at = list[str](), start
        ends = [*self.starts[1:].tolist(), len(self.text)]
        for special, first, last in zip(self.special, self.starts.tolist(), ends, strict=True):
            if special and first < stop and last > at:
                parts.append(self.text[at : max(at, first)])
                at = last
        return "".join([*parts, self.text[at : max(at, stop)]])

    def tokens(self, start: int, stop: int) -> int:
        """Returns how many tokens begin in [start, stop)."""
        return int(((self.starts >= start) & (self.starts < stop)).sum())


def _place(text: str, starts: Ids, special: list[bool], length: int) -> int:
    """Returns where the ``length`` first code points without special tokens end in ``text``, behind special tokens that stand there."""
    ends, shown = [*starts[1:].tolist(), len(text)], 0
    for is_special, first, last in zip(special, starts.tolist(), ends, strict=True):
        if is_special:
            continue
        if shown + last - first > length:
            return first + length - shown
        shown += last - first
    return len(text)
