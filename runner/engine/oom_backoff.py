"""Backs off when device memory runs out during a run: batches become smaller, and a row that does not fit alone is given up.

In deterministic mode batches stay as they are. One that did not fit is tried once more, after spare buffers have gone back to the system:
other programs may have needed the memory for a while.

Holds the limits that the engine and the scorer keep to. Knows no model and no caches: the caller frees its arrays first.
"""

import logging
from collections.abc import Set
from dataclasses import replace

import mlx.core as mx

from ..core.errors import OutOfRoom
from ..ranks.ranks import ALONE, Ranks
from ..scheduler.limits import Limits

log = logging.getLogger("mlx_bulk")

LEAST_TOKENS = 64  # in a call: with fewer, reading the weights takes longer than computing the tokens
GIVEN_UP = 16  # rows in a row: after so many, the rows are not to blame


class MemoryBackoff:
    """The limits in force. They shrink when memory runs out; the next start takes the config's limits again.

    ranks: run the model together. Where there are several, the process ends instead: others cannot know of it in the middle of a step.
    """

    def __init__(self, limits: Limits, ranks: Ranks = ALONE):
        self.limits, self._ranks = limits, ranks
        self._repeated = set[tuple[int, int]]()  # what batches computed that were tried once more
        self._tried: tuple[int, Limits] | None = None  # a row that is tried in smaller calls, and the limits before that
        self._given_up = 0

    def halve(self, rows: int, longest: int, doing: str, why: str) -> None:
        """Halves the limits, from what ``rows`` rows that grow to ``longest`` tokens took: they did not fit.

        ``doing`` and ``why`` say what failed.
        """
        now = self.limits
        rows, kv_bytes = min(now.rows, rows), min(now.kv_bytes, now.kv(rows, longest)) / 2
        self.limits = replace(now, rows=-(-rows // 2), kv_bytes=kv_bytes, tokens=_fewer(now.tokens))
        self.free(doing, why, self._new_limits)

    def halve_calls(self, row: int, doing: str, why: str) -> bool:
        """Halves the tokens of a call after a row did not fit alone. Returns True when the row should be tried again.

        When it should not, the limits return to those before this row: one large row must not slow the others.
        """
        if self._tried is None or self._tried[0] != row:
            self._tried = row, self.limits
        again = self.limits.tokens > LEAST_TOKENS
        self.limits = replace(self.limits, tokens=_fewer(self.limits.tokens)) if again else self._tried[1]
        self.free(doing, why, self._new_limits if again else f"row {row} is given up")
        return again

    def give_up(self, why: str) -> None:
        """Counts a row that is given up. Raises OutOfRoom after many of them with no finished row between."""
        self._given_up += 1
        if self._given_up == GIVEN_UP:
            raise OutOfRoom(
                f"out of device memory ({why}): {GIVEN_UP} rows one after the other did not fit even alone; what was finished is safe: "
                "end other programs that use the device, or lower batch.memory, then continue with the same command (without --overwrite)"
            )

    def done(self) -> None:
        """Notes that a row has finished."""
        self._given_up = 0

    def repeat(self, parts: Set[tuple[int, int]], doing: str, why: str) -> None:
        """Lets a batch be tried once more as it was. Raises OutOfRoom at its second time.

        parts: what the batch computes: rows, each with a sample, a passage or a text.
        """
        if not self._repeated.isdisjoint(parts):
            self._ranks.end_without_memory(f"{doing} ({why})")
            lower = "fewer batch.rows or batch.tokens" if len(parts) > 1 else "fewer batch.tokens or shorter rows"
            raise OutOfRoom(
                f"out of device memory twice with the same batch, the second time while {doing} ({why}); what was finished is safe. "
                "batch.deterministic can not make its batches smaller: end other programs that use the device, then continue with the same "
                f"command (without --overwrite), or start another run (another --output) with {lower}"
            )
        self._repeated |= parts
        self.free(doing, why, "batch.deterministic keeps the batch as it is, which is tried once more")

    def free(self, doing: str, why: str, cure: str) -> None:
        """Returns spare buffers to the system; logs what failed and the ``cure``."""
        self._ranks.end_without_memory(f"{doing} ({why})")
        mx.clear_cache()
        log.warning("out of device memory while %s (%s): %s", doing, why, cure)

    @property
    def _new_limits(self) -> str:
        return f"from now on at most {self.limits.rows} rows at once, {self.limits.tokens} tokens in a call"


def _fewer(tokens: int) -> int:
    return min(tokens, max(tokens // 2, LEAST_TOKENS))
