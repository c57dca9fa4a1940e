"""Finds duplicate keys with 16 bytes a row: it keeps a digest of each key, and finds equal ones by sorting.

Keeps no keys, and knows no files.
"""

from hashlib import blake2b

import numpy as np

FIRST_LOOK = 1 << 16  # rows; then whenever rows have doubled, so that a duplicate stops the scan early


class KeyDigests:
    """The digests of keys, one a row in the order of the input; zeros for a row without a key."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._look_at = FIRST_LOOK

    def __len__(self) -> int:
        return len(self._digests) // 16

    @property
    def due(self) -> bool:
        """True when rows have doubled since the last look for duplicates."""
        return len(self._digests) >= 16 * self._look_at

    def add(self, key: str | None) -> None:
        """Adds the next row's key, or None for a row without one."""
        self._digests += bytes(16) if key is None else blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()

    def duplicate(self) -> tuple[int, int] | None:
        """Returns the positions of the first two rows with one key, in the order of the input, or None if keys are unique."""
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
