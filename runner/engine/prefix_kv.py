"""Caches of the prefixes that prompts of the window share: computed when the first row behind one is prefilled, dropped with the last.

Each is a plain cache of one row, on top of a copy of the one above it, or one that an earlier run has left on the disk. What is lost,
as memory ran out or weights changed, is computed anew when a row asks for it.
"""

from collections.abc import Callable, Iterable

from ..core.requests import Request
from ..layers.kv_cache import fresh
from ..scheduler.prompt_prefixes import arrangement
from ..scheduler.request_queue import Arrange, SharedPrefix
from .prefill import grown
from .prefix_disk_cache import Base
from .setup import Setup


class Stems:
    """The bases that are ``kept``."""

    def __init__(self) -> None:
        self.kept: dict[SharedPrefix, Base] = {}
        self._computed = 0  # tokens, for the last group

    def arranging(self, setup: Setup) -> Arrange:
        """How a backlog that begins now is arranged."""
        self.clear()
        cached = setup.prefix_cache.known(setup.wanted.echoed) if setup.shares and setup.prefix_cache is not None else []
        return arrangement(setup.shares, cached)

    def bases(self, setup: Setup, requests: list[Request], stem: Callable[[Request], SharedPrefix | None]) -> tuple[list[Base | None], int]:
        """What each row of a group is prefilled on top of, nothing where none has a stem; and how many tokens were computed for that."""
        self._computed = 0
        of = [stem(request) for request in requests]
        return [None if one is None else self._base(setup, one) for one in of] if any(of) else [], self._computed

    def keep(self, stems: Iterable[SharedPrefix]) -> None:
        """Drops all others."""
        self.kept = {stem: self.kept[stem] for stem in stems if stem in self.kept}

    def clear(self) -> None:
        """Drops all."""
        self.kept = {}

    def _base(self, setup: Setup, stem: SharedPrefix) -> Base:
        if stem not in self.kept:
            self.kept[stem] = self._from_disk(setup, stem) or self._anew(setup, stem)
        return self.kept[stem]

    def _from_disk(self, setup: Setup, stem: SharedPrefix) -> Base | None:
        if setup.prefix_cache is None:
            return None
        return setup.prefix_cache.load(stem.ids, setup.wanted.echoed, lambda: fresh(setup.model, 1, padded=False))

    def _anew(self, setup: Setup, stem: SharedPrefix) -> Base:
        above = None if stem.parent is None else self._base(setup, stem.parent)
        base = grown(setup, stem.ids, above)
        self._computed += stem.own_tokens
        if setup.prefix_cache is not None:
            setup.prefix_cache.save(stem.ids, setup.wanted.echoed, base)
        return base
