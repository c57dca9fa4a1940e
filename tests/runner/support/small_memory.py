"""Makes a model on a device with little memory: calls that ask for too much raise what mlx raises."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_bulk.runner.layers.kv_cache import Caches

from .tiny import Network

Refuses = Callable[[int, int, int], bool]  # rows of a call, its tokens a row, tokens that its rows have in their caches then


MESSAGE = "[metal::malloc] Attempting to allocate 123 bytes which is greater than the maximum allowed buffer size."


class Held:
    """Something that a call holds on to while it runs."""


class Tight:
    """``network`` on a device where ``refuses`` says which calls do not fit. Notes all (rows, tokens, cached), refused ones too.

    ``held`` counts what refused calls held when a later call began: an error whose traceback is kept alive keeps arrays too.
    """

    def __init__(self, network: Network, refuses: Refuses):
        self.network, self.refuses = network, refuses
        self.calls: list[tuple[int, int, int]] = []
        self.refused: list[tuple[int, int, int]] = []
        self.held = 0
        self._holding: list[weakref.ref[Held]] = []

    def __call__(self, tokens: mx.array, cache: Caches | None) -> mx.array:
        self.ask(tokens, cache)
        return self.network(tokens, cache=cache)

    def ask(self, tokens: mx.array, cache: Caches | None) -> None:
        """Raises what mlx raises where the call does not fit."""
        self.held += sum(one() is not None for one in self._holding)
        here = Held()
        rows, width = tokens.shape
        call = rows, width, cached(cache) + width
        self.calls.append(call)
        if self.refuses(*call):
            self.refused.append(call)
            self._holding.append(weakref.ref(here))
            raise RuntimeError(MESSAGE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)


class Refused:
    """``function`` on a device that has no memory for its ``number``-th call; ``calls`` counts them."""

    def __init__(self, function: Callable[..., Any], number: int):
        self.function, self.number, self.calls = function, number, 0

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return partial(self, instance)  # as a function that a class holds

    def __call__(self, *given: Any) -> Any:
        self.calls += 1
        if self.calls == self.number:
            raise RuntimeError(MESSAGE)
        return self.function(*given)


def cached(caches: Any) -> int:
    """Positions that caches hold; None: a call that keeps nothing."""
    offsets = [getattr(cache, "_idx", getattr(cache, "offset", 0)) for cache in caches or ()]
    return max((int(offset) for offset in offsets), default=0)
