"""Which requests are prefilled together, and when: longest first in a window of shards, by padded tokens and KV bytes.

    window, longest first:  ######## ####### ####### ##### #### #### ### # #
    one prefill:            ^^^^^^^^^^^^^^^^^^^^^^^^  rows x longest <= tokens; the pads are what is missing to a rectangle

Pure and deterministic: the same requests and limits give the same groups. Knows nothing of models or text.
"""

from dataclasses import dataclass, replace


@dataclass(slots=True, frozen=True)
class Limits:
    """What a batch may take. ``rows`` decode at once, ``tokens`` are padded tokens of one prefill, ``kv_bytes`` all caches.

    A cached token costs ``token_bytes``, a row ``row_bytes`` besides. ``even``: only prompts of one length stand together
    (models whose pads are not ignored).
    """

    rows: int
    tokens: int
    kv_bytes: float
    token_bytes: float
    row_bytes: float
    even: bool = False

    def kv(self, rows: int, longest: int) -> float:
        """Bytes of ``rows`` rows in buffers as wide as the longest of them."""
        return rows * (longest * self.token_bytes + self.row_bytes)

    def less(self, held: float) -> "Limits":
        """The same where ``held`` bytes of the KV budget are taken."""
        return replace(self, kv_bytes=self.kv_bytes - held) if held else self

    def halved(self, times: int) -> "Limits":
        """Half as many rows and tokens, so many times over; at least one of each."""
        return replace(self, rows=max(1, self.rows >> times), tokens=max(1, self.tokens >> times))

    def most_rows(self, longest: int) -> int:
        """How many rows that become ``longest`` may decode at once: at least one."""
        need = self.kv(1, longest)
        return self.rows if need * self.rows <= self.kv_bytes else max(1, int(self.kv_bytes // need))


@dataclass(slots=True, frozen=True)
class Load:
    """What is in the batch already: its rows, and the longest that one of them can become."""

    rows: int = 0
    longest: int = 0
