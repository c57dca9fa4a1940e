"""Limits of a batch: rows, padded tokens and KV bytes. ``Load`` is what a batch holds already.

window, longest first:  ######## ####### ####### ##### #### #### ### # #
one prefill:            ^^^^^^^^^^^^^^^^^^^^^^^^  rows x longest <= tokens; padding fills the rectangle
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

_LONGEST = 2**40  # tokens; more than any row has
_WIDTH, _SHARE = 64, 8  # of calls of few shapes: widths are multiples of the one, rows of the other's part of a full call
_WIDER = 1.25  # times a row's tokens, as wide may a call of few shapes be


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits of a batch: ``rows`` that decode at once, padded ``tokens`` of one prefill, ``kv_bytes`` of all its KV caches.

    A cached token costs ``token_bytes``, and each row ``row_bytes`` besides. With ``equal_lengths`` a batch takes only prompts of one
    length, for models that can't ignore padding. ``pads``: those that a batch of passages may have, where the model computes pads too.
    ``call_tokens``: how many tokens of a prefill take as long as the fixed cost of a call. ``few_shapes``: a shape that the device has seen
    is cheaper than a new one, so calls that keep nothing are padded to ``shape``, but not beyond the model's ``positions``.

    A pooling model has no KV caches: its bytes are those of its arrays at work. Each pair of a row's tokens costs ``pair_bytes``, where
    attention keeps its scores in memory.
    """

    rows: int
    tokens: int
    kv_bytes: float
    token_bytes: float
    row_bytes: float
    equal_lengths: bool = False
    pair_bytes: float = 0.0
    pads: float = math.inf
    call_tokens: int = 64
    few_shapes: bool = False
    positions: int = _LONGEST

    def kv(self, rows: int, longest: int) -> float:
        """Returns the bytes of ``rows`` rows in buffers as wide as the longest of them."""
        return rows * (longest * (self.token_bytes + longest * self.pair_bytes) + self.row_bytes)

    def width(self, longest: int) -> int:
        """Returns the columns of a call of passages of up to ``longest`` tokens: of few shapes, such that rows fill ``tokens``."""
        if not self.few_shapes:
            return longest
        width = -(-longest // _WIDTH) * _WIDTH
        widest = min(self.tokens, int(_WIDER * width))
        width = next((w for w in range(width, widest + 1, _WIDTH) if self.tokens % w == 0), width)
        return max(longest, min(width, self.positions))

    def shape(self, rows: int, longest: int) -> tuple[int, int]:
        """Returns the rows and columns of a call that keeps nothing, with rows of pads."""
        width = self.width(longest)
        full = max(1, min(self.rows, self.tokens // max(1, width)))
        step = max(1, full // _SHARE) if self.few_shapes else 1
        return max(rows, min(full, -(-rows // step) * step)), width

    @property
    def longest(self) -> int:
        """Tokens of the longest row that has room, alone."""
        low, high = 0, _LONGEST
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.kv(1, middle) <= self.kv_bytes else (low, middle - 1)
        return low

    def minus(self, held: float) -> "Limits":
        """Returns these limits with ``held`` bytes less for KV caches."""
        return replace(self, kv_bytes=self.kv_bytes - held) if held else self

    def halved(self, times: int) -> "Limits":
        """Returns limits with rows and tokens halved ``times`` times; at least one of each."""
        return replace(self, rows=max(1, self.rows >> times), tokens=max(1, self.tokens >> times))

    def most_rows(self, longest: int) -> int:
        """Returns how many rows that become ``longest`` may decode at once: at least one."""
        need = self.kv(1, longest)
        return self.rows if need * self.rows <= self.kv_bytes else max(1, int(self.kv_bytes // need))


def least_limits(limits: Sequence[Limits]) -> Limits:
    """Returns limits that all of ``limits`` allow: those whose caches hold the fewest tokens, with the fewest rows and tokens of any."""
    least = min(limits, key=lambda each: each.kv_bytes / max(each.token_bytes, 1.0))
    fewest = {name: min(getattr(each, name) for each in limits) for name in ("rows", "tokens", "pads", "positions")}
    return replace(least, **fewest)


@dataclass(slots=True, frozen=True)
class Load:
    """The rows of the batch that decodes, and the length that the longest of them can become."""

    rows: int = 0
    longest: int = 0
