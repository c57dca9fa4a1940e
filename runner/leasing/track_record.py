"""What speaks against a worker: it is lost again and again, its records are damaged, or its rows fail one after another.

The first and the last count only while others are fine: else the data, the network or the machine of the driver is to blame. A worker
goes by its label here, ``--name`` or its machine, which it keeps when it is started again. Workers of one label are taken for one. Those of
one machine are often lost together, as when its network goes: that counts once.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

MOST_LOSSES = 3  # in a row, without a record in between
MOST_DAMAGED = 3  # messages
MOST_FAILURES = 20  # rows in a row
OWN_STAGES = ("generate", "score", "pool", "reward", "store")  # at which a row may fail because of its worker


@dataclass(slots=True)
class _Streak:
    """What went wrong in a row. others: records of all other workers when it began; newest: when it went wrong last."""

    length: int = 0
    others: int = 0
    newest: float = -inf


class TrackRecords:
    """The track records of all workers. Each method returns why the worker is not to be used any more, empty where nothing is wrong."""

    def __init__(self) -> None:
        self._records = Counter[str]()
        self._damaged = Counter[str]()
        self._losses: dict[str, _Streak] = {}
        self._failures: dict[str, _Streak] = {}
        self._broken_at: dict[int, str] = {}
        self._verdicts: dict[str, str] = {}

    def land(self, label: str, records: int, failures: int) -> str:
        """Notes what a message of the worker held. failures: of rows, at ``OWN_STAGES``."""
        if records or failures:
            self._losses.pop(label, None)
        if records:
            self._records[label] += records
            self._failures.pop(label, None)
            return ""
        if not failures:
            return ""
        streak = self._add(self._failures, label, failures)
        if streak.length < MOST_FAILURES or self._others(label) - streak.others < MOST_FAILURES:
            return ""
        return (
            f"failed {streak.length} rows in a row, while others are fine; these rows are in errors/: mend the worker, then do them again "
            "with --retry-errors"
        )

    def lose(self, label: str, joined: float, now: float) -> str:
        """Notes that a worker was lost ``now`` which had ``joined`` then, both in seconds of one clock."""
        if (before := self._losses.get(label)) is not None and joined <= before.newest:
            return ""  # it was there with the one that was lost before
        streak = self._add(self._losses, label, 1)
        streak.newest = now
        if streak.length < MOST_LOSSES or self._others(label) == streak.others:
            return ""
        cure = "mend it, and start it with another --name"
        self._verdicts[label] = f"was lost {streak.length} times in a row without a finished row, while others are fine; {cure}"
        return self._verdicts[label]

    def verdict(self, label: str) -> str:
        """Tells why a worker that joins is not to be used: it was lost too often."""
        return self._verdicts.get(label, "")

    def damage(self, worker: str) -> str:
        """Notes a damaged message of the worker, which goes by its own name here."""
        self._damaged[worker] += 1
        return f"sent damaged records {self._damaged[worker]} times" if self._damaged[worker] >= MOST_DAMAGED else ""

    def breaks_again(self, worker: str, shards: Iterable[int]) -> bool:
        """Notes that the model of a worker broke down at some shards; True where that of another worker did so at one of them."""
        return any(self._broken_at.setdefault(shard, worker) != worker for shard in list(shards))

    def _others(self, label: str) -> int:
        return self._records.total() - self._records[label]

    def _add(self, streaks: dict[str, _Streak], label: str, count: int) -> _Streak:
        streak = streaks.setdefault(label, _Streak(0, self._others(label)))
        streak.length += count
        return streak
