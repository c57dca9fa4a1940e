"""What holds a completion to a grammar, token by token: the contract between the engine and those that know grammars."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .grammar_spec import GrammarSpec


class Guide(Protocol):
    """Follows one completion, and says before each token which ids may come.

    Used by one thread. ``error`` is looked at after each call: once it is set, the completion fails with it.
    """

    @property
    def error(self) -> str | None:
        """Why the guide cannot go on; None while it can."""
        ...

    @property
    def complete(self) -> bool | None:
        """True when the tokens so far are a whole text of the grammar; None where no grammar holds this completion."""
        ...

    def fill(self, into: NDArray[np.int32]) -> bool:
        """Writes which ids may come next to ``into`` [ceil(V / 32)]: bit v % 32 of word v // 32. Returns False where any may.

        EOS and stop ids are among them exactly when the completion may end here. At least one id is allowed unless ``error`` is set.
        """
        ...

    def push(self, token: int) -> None:
        """Takes the token that was drawn."""
        ...


class Guidance(Protocol):
    """What a row's completions are held to. Shared by its samples, and by all rows that ask for the same."""

    @property
    def grammar(self) -> GrammarSpec | None:
        """The grammar; None where it is only reasoning that is held."""
        ...

    def start(self) -> Guide:
        """Returns a guide for one completion, at its beginning."""
        ...
