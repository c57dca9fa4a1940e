"""DRY's sequence breakers: from strings to the ids of the tokens that hold one of them."""

from collections.abc import Sequence
from functools import cached_property

from ...configs.explain import shown
from ...runner.core.errors import RowError
from ...runner.text.tokenizer import Tokenizer


class SequenceBreakers:
    """Finds tokens by what they hold. Looks through the whole vocabulary once, and remembers each string."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._found: dict[str, frozenset[int]] = {}

    def ids(self, strings: Sequence[str]) -> frozenset[int]:
        """Returns the ids of all tokens that hold one of ``strings``. Raises RowError for a string that no token holds whole."""
        for text in set(strings) - self._found.keys():
            sought = text.encode()
            self._found[text] = frozenset(i for i, piece in enumerate(self._pieces) if sought in piece)
            if not self._found[text]:
                del self._found[text]
                cure = "give a shorter one, since a breaker must lie within one token"
                raise RowError("sampling", f"sampling.dry_sequence_breakers: no token of the model holds {shown(text)}; {cure}")
        return frozenset[int]().union(*(self._found[text] for text in strings))

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token) for token in range(self._tokenizer.size)]
