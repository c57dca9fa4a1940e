"""How keys and values of cached tokens are held in fewer bits. Knows no caches and no model."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class KVQuantization:
    """Cached keys and values of ``bits`` bits each, 4 or 8.

    Each ``group`` of neighbours in a head shares a scale and a bias. The first ``start`` tokens of each row stay as the model made
    them. That counts tokens of the row, not of its batch: a row's results do not depend on its batch mates.
    """

    bits: int
    group: int = 64
    start: int = 0

    @property
    def in_words(self) -> str:
        """The same for a line of the log.

        >>> KVQuantization(4, 64, 100).in_words
        'keys and values of tokens from number 101 of each row on in 4 bits, groups of 64'
        """
        whole = f" of tokens from number {self.start + 1} of each row on" if self.start else ""
        return f"keys and values{whole} in {self.bits} bits, groups of {self.group}"
