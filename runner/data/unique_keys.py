"""Whether the rows' keys are unique, in 16 bytes a row: their digests stand one after the other, and equals are found by sorting.

Keeps no key itself, and knows no files.
"""

from hashlib import blake2b

import numpy as np

FIRST_LOOK = 1 << 16  # rows; then whenever they have doubled, so that a long input need not be read to its end


class Keys:
    """A digest a row, in the order of the input; zeros for a row without a key."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._look_at = FIRST_LOOK

    def __len__(self) -> int:
        return len(self._digests) // 16

    @property
    def due(self) -> bool:
        """True when so many have come since the last look that it is time for another."""
        return len(self._digests) >= 16 * self._look_at

    def add(self, key: str | None) -> None:
        """Takes in the next row's key."""
        self._digests += bytes(16) if key is None else blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()

    def duplicate(self) -> tuple[int, int] | None:
        """Positions of the first row whose key was there before, and of where it was; in the order of the input. None without one."""
        self._look_at = 2 * max(self._look_at, len(self))
        halves = np.frombuffer(self._digests, np.uint64)[::2]
        ordered = np.sort(halves)
        equal = ordered[1:][ordered[1:] == ordered[:-1]]
        equal = equal[equal != 0]
        seen: dict[bytes, int] = {}
        for position in np.flatnonzero(np.isin(halves, equal)).tolist() if len(equal) else []:
            digest = bytes(self._digests[16 * position : 16 * position + 16])
            if digest in seen:
                return seen[digest], position
            seen[digest] = position
        return None
