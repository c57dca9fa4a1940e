"""What is done when device memory runs out in the middle of a run: batches become smaller, a row that is too large alone is given up.

Holds the limits that engine and scorer keep to. Knows no model and no caches: whoever ran out lets go of its arrays first.
"""

import logging
from dataclasses import replace

import mlx.core as mx

from ..core.errors import OutOfRoom
from ..scheduler.limits import Limits

log = logging.getLogger("mlx_bulk")

LEAST_TOKENS = 64  # of a call: with fewer, the weights take longer to read than the tokens to compute
GIVEN_UP = 16  # rows one after the other: then it is not they that are too large


class MemoryBackoff:
    """The limits in force. They shrink when memory runs out; the next start begins with the config's again."""

    def __init__(self, limits: Limits, static: bool):
        self.limits = limits
        self._static = static
        self._tried: tuple[int, Limits] | None = None  # a row that is tried in smaller calls, and the limits before
        self._given_up = 0

    def halve(self, rows: int, longest: int, doing: str, why: str) -> None:
        """After ``rows`` rows that become ``longest`` did not fit: the next have half of what these took.

        ``doing`` and ``why`` say what has failed. Raises OutOfRoom where batches are frozen (deterministic mode).
        """
        now = self.limits
        rows, kv_bytes = min(now.rows, rows), min(now.kv_bytes, now.kv(rows, longest)) / 2
        self.limits = replace(now, rows=-(-rows // 2), kv_bytes=kv_bytes, tokens=_fewer(now.tokens))
        self.free(doing, why, self._said)

    def halve_calls(self, row: int, doing: str, why: str) -> bool:
        """After a row did not fit alone: whether it is to be tried again, as a call takes fewer tokens now.

        Where it is not, limits are as they were before it: the size of one row is no matter of the others. Raises as ``halve``.
        """
        if self._tried is None or self._tried[0] != row:
            self._tried = row, self.limits
        again = self.limits.tokens > LEAST_TOKENS
        self.limits = replace(self.limits, tokens=_fewer(self.limits.tokens)) if again else self._tried[1]
        self.free(doing, why, self._said if again else f"row {row} is given up")
        return again

    def give_up(self, why: str) -> None:
        """Counts a row that is given up. Raises OutOfRoom when there have been many and none that was done."""
        self._given_up += 1
        if self._given_up == GIVEN_UP:
            raise OutOfRoom(
                f"out of device memory ({why}): {GIVEN_UP} rows one after the other did not fit even alone; what was finished is safe: "
                "end other programs that use the device, or lower batch.memory, then continue with the same command (without --overwrite)"
            )

    def done(self) -> None:
        """Notes that a row was done."""
        self._given_up = 0

    def free(self, doing: str, why: str, cure: str) -> None:
        """Returns spare buffers to the system and says what has failed and what is done about it. Raises as ``halve``."""
        if self._static:
            raise OutOfRoom(
                f"out of device memory while {doing} ({why}); what was finished is safe. batch.deterministic can not make its batches "
                "smaller: end other programs that use the device, then continue with the same command (without --overwrite), or start "
                "another run with fewer batch.rows"
            )
        mx.clear_cache()
        log.warning("out of device memory while %s (%s): %s", doing, why, cure)

    @property
    def _said(self) -> str:
        return f"from now on at most {self.limits.rows} rows at once, {self.limits.tokens} tokens in a call"


def _fewer(tokens: int) -> int:
    return min(tokens, max(tokens // 2, LEAST_TOKENS))
