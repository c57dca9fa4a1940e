"""KV caches of the prefixes that a window's prompts share. Knows no batch and no folder's format.

A prefix is computed when the first row on top of it is prefilled, and dropped after the last. It is a plain cache of one row, on top of
a copy of its parent's, or it comes from the folder of ``prefix_disk_cache``. A prefix that was lost, as memory ran out or the weights
changed, is computed again when a row needs it.
"""

from collections.abc import Callable, Iterable

from ..core.images import FIRST_IMAGE_ID
from ..core.requests import Request
from ..layers.kv_cache import make_caches
from ..scheduler.prompt_prefixes import arrangement
from ..scheduler.request_queue import Arrange, SharedPrefix
from .prefill import ByCalls, prefix_by_calls
from .prefix_disk_cache import ComputedPrefix, PrefixCache
from .setup import Setup


class PrefixKV:
    """The prefixes that are computed and still needed: ``kept``."""

    def __init__(self) -> None:
        self.kept: dict[SharedPrefix, ComputedPrefix] = {}
        self._computed_tokens = 0  # for the last group

    def arranging(self, setup: Setup) -> Arrange:
        """Drops all prefixes; returns how a new request queue finds and orders those of its windows."""
        self.clear()
        cached = setup.prefix_cache.known(setup.wanted.echoed) if setup.shares_prompts and setup.prefix_cache is not None else []
        return arrangement(setup.shares_prompts, cached)

    def for_group(
        self, setup: Setup, requests: list[Request], prefix_of: Callable[[Request], SharedPrefix | None]
    ) -> ByCalls[tuple[list[ComputedPrefix | None], int]]:
        """Returns the prefix of each request, an empty list where none has one, and how many tokens were computed for them."""
        self._computed_tokens = 0
        prefixes = [prefix_of(request) for request in requests]
        for prefix in filter(None, prefixes):
            yield from self._computed(setup, prefix)
        computed = [None if prefix is None else self.kept[prefix] for prefix in prefixes] if any(prefixes) else []
        return computed, self._computed_tokens

    def keep(self, prefixes: Iterable[SharedPrefix]) -> None:
        """Drops all other prefixes."""
        self.kept = {prefix: self.kept[prefix] for prefix in prefixes if prefix in self.kept}

    def clear(self) -> None:
        """Drops all prefixes."""
        self.kept = {}

    def _computed(self, setup: Setup, prefix: SharedPrefix) -> ByCalls[ComputedPrefix]:
        if prefix not in self.kept:
            self.kept[prefix] = self._from_disk(setup, prefix) or (yield from self._compute(setup, prefix))
        return self.kept[prefix]

    def _from_disk(self, setup: Setup, prefix: SharedPrefix) -> ComputedPrefix | None:
        folder = _folder(setup, prefix)
        if folder is None:
            return None
        return folder.load(prefix.ids, setup.wanted.echoed, lambda: make_caches(setup.model, 1, padded=False, kv=setup.kv))

    def _compute(self, setup: Setup, prefix: SharedPrefix) -> ByCalls[ComputedPrefix]:
        parent = None if prefix.parent is None else (yield from self._computed(setup, prefix.parent))
        computed = yield from prefix_by_calls(setup, prefix.ids, parent)
        self._computed_tokens += prefix.own_tokens
        if (folder := _folder(setup, prefix)) is not None:
            folder.save(prefix.ids, setup.wanted.echoed, computed)
        return computed


def _folder(setup: Setup, prefix: SharedPrefix) -> PrefixCache | None:
    """Returns where a prefix is kept on disk; None for one with pictures, whose ids mean something else in each session."""
    return None if (prefix.ids >= FIRST_IMAGE_ID).any() else setup.prefix_cache
