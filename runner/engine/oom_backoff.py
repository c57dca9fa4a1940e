"""Backs off when device memory runs out during a run: batches become smaller, and a row that does not fit alone is given up.

Holds the limits that the engine and the scorer keep to. Knows no model and no caches: the caller frees its arrays first.
"""

import logging
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

    def __init__(self, limits: Limits, static: bool, ranks: Ranks = ALONE):
        self.limits, self._ranks = limits, ranks
        self._static = static
        self._tried: tuple[int, Limits] | None = None  # a row that is tried in smaller calls, and the limits before that
        self._given_up = 0

    def halve(self, rows: int, longest: int, doing: str, why: str) -> None:
        """Halves the limits, from what ``rows`` rows that grow to ``longest`` tokens took: they did not fit.

        ``doing`` and ``why`` say what failed. Raises OutOfRoom where batches must not change (deterministic mode).
        """
        now = self.limits
        rows, kv_bytes = min(now.rows, rows), min(now.kv_bytes, now.kv(rows, longest)) / 2
        self.limits = replace(now, rows=-(-rows // 2), kv_bytes=kv_bytes, tokens=_fewer(now.tokens))
        self.free(doing, why, self._new_limits)

    def halve_calls(self, row: int, doing: str, why: str) -> bool:
        """Halves the tokens of a call after a row did not fit alone. Returns True when the row should be tried again.

        When it should not, the limits return to those before this row: one large row must not slow the others. Raises as ``halve``.
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

    def free(self, doing: str, why: str, cure: str) -> None:
        """Returns spare buffers to the system; logs what failed and the ``cure``. Raises as ``halve``."""
        self._ranks.end_without_memory(f"{doing} ({why})")
        if self._static:
            raise OutOfRoom(
                f"out of device memory while {doing} ({why}); what was finished is safe. batch.deterministic can not make its batches "
                "smaller: end other programs that use the device, then continue with the same command (without --overwrite), or start "
                "another run with fewer batch.rows"
            )
        mx.clear_cache()
        log.warning("out of device memory while %s (%s): %s", doing, why, cure)

    @property
    def _new_limits(self) -> str:
        return f"from now on at most {self.limits.rows} rows at once, {self.limits.tokens} tokens in a call"


def _fewer(tokens: int) -> int:
    return min(tokens, max(tokens // 2, LEAST_TOKENS))
