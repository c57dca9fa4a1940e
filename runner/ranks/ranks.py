"""The processes that run one model together, each with a part of it: mlx's ranks. They do the same steps in the same order.

What a rank cannot know by itself (what has arrived, what was drawn, how much memory another has) it gets from the first rank, or from
all. Each method that exchanges something must be called by all ranks in turn. A process alone is a group of one.

What is exchanged is pickled: the ranks of a group trust each other.
"""

import logging
import os
import pickle
import platform
import signal
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from ...configs.errors import BulkError

log = logging.getLogger("mlx_bulk")

T = TypeVar("T")

FIRST_WAIT, LAST_WAIT = 0.005, 1.0  # seconds between two looks while the first rank waits for something
_ASLEEP = 0.9  # of that time: a rank that waits for another in mlx keeps a core busy


@dataclass(slots=True, frozen=True)
class _Result:
    """What a rank's own work came to: a value, or an error."""

    value: Any = None
    error: BulkError | None = None


class Ranks:
    """A group of processes, or this one alone where ``group`` is None. Belongs to the thread that calls mlx.

    beats: counts what was exchanged; it stands still where another rank hangs. loading: steps are long, as a model is loaded.
    """

    def __init__(self, group: mx.distributed.Group | None = None, rank: int = 0, size: int = 1):
        self._group = group
        self.rank, self.size = (rank, size) if group is None else (group.rank(), group.size())
        self.beats, self.loading = 0, False
        self.lost = False  # an error has ended this rank's work in the middle: the others are elsewhere
        self._waiting = ThreadPoolExecutor(1, "waiting")
        self.hosts: list[str] = self.gather(platform.node())

    @property
    def several(self) -> bool:
        """True for a group; False for a process alone."""
        return self.size > 1

    @property
    def first(self) -> bool:
        """True for the rank that decides."""
        return self.rank == 0

    @property
    def group(self) -> mx.distributed.Group:
        """mlx's group, of several."""
        assert self._group is not None
        return self._group

    @property
    def beside(self) -> int:
        """Counts the ranks on this machine, this one included: they share its memory."""
        return self.hosts.count(platform.node())

    @contextmanager
    def while_loading(self) -> Generator[None]:
        """Within this block a model is loaded and tried."""
        self.loading = True
        try:
            yield
        finally:
            self.loading = False

    @property
    def name(self) -> str:
        """This rank in words."""
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """Returns a rank in words."""
        return f"rank {rank} ({self.hosts[rank]})"

    # ------------------------------------------------------------------------------------------------- what is exchanged

    def flag(self, value: int) -> int:
        """Returns the first rank's ``value``, a small number."""
        return int(self._summed(np.array([value], np.int32))[0]) if self.several else value

    def share(self, value: T) -> T:
        """Returns the first rank's ``value``; what others give is not looked at."""
        if not self.several:
            return value
        content = np.frombuffer(pickle.dumps(value), np.uint8) if self.first else np.zeros(0, np.uint8)
        length = self.flag(len(content))
        shared = self._summed(content if self.first else np.zeros(length, np.uint8))
        return value if self.first else pickle.loads(shared.tobytes())

    def gather(self, value: T) -> list[T]:
        """Returns the values of all ranks, in their order."""
        if not self.several:
            return [value]
        content = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = self._all(np.array([len(content)], np.int32))
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(content)] = content
        rows = self._all(padded).reshape(self.size, -1)
        return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths.tolist(), strict=True)]

    def jointly(self, work: Callable[[], T]) -> list[T]:
        """Has each rank do its own ``work``, and returns what all came to. Raises the first BulkError of any rank on all of them."""
        if not self.several:
            return [work()]
        try:
            mine = _Result(work())
        except BulkError as error:
            mine = _Result(error=error)
        results = self.gather(mine)
        for rank, result in enumerate(results):
            if result.error is not None:
                raise type(result.error)(f"{self.name_of(rank)}: {result.error}") from mine.error
        return [result.value for result in results]

    def wait_for(self, get: Callable[[], T]) -> T:
        """Returns what ``get`` gives on the first rank, however long that takes. It is called in a thread, on the first rank alone."""
        if not self.several:
            return get()
        coming: Future[T] | None = self._waiting.submit(get) if self.first else None
        pause = FIRST_WAIT
        while True:
            if coming is not None:
                _wait(coming, pause)
            else:
                sleep(_ASLEEP * pause)
            if self.flag(coming is not None and coming.done()):
                return self.share(None if coming is None else coming.result())  # pyright: ignore[reportReturnType]
            pause = min(LAST_WAIT, pause * 1.2)

    def of_first(self, array: mx.array) -> mx.array:
        """Returns the first rank's ``array`` of whole numbers; lazy, as what mlx computes."""
        if not self.several:
            return array
        self.beats += 1
        return mx.distributed.all_sum(array if self.first else mx.zeros_like(array), group=self.group)

    def _summed(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not array.size:
            return array
        mine = mx.array(array) if self.first else mx.zeros(array.shape, mx.array(array).dtype)
        total = mx.distributed.all_sum(mine, group=self.group)
        mx.eval(total)
        self.beats += 1
        return np.array(total)

    def _all(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        gathered = mx.distributed.all_gather(mx.array(array), group=self.group)
        mx.eval(gathered)
        self.beats += 1
        return np.array(gathered)

    # --------------------------------------------------------------------------------------------------------- the end

    def end_without_memory(self, doing: str) -> None:
        """Ends this process where memory has run out while ``doing``, if there are other ranks: as the system would end it."""
        if self.several:
            log.warning("%s: out of device memory while %s: all ranks start again", self.name, doing)
            os.kill(os.getpid(), signal.SIGKILL)


ALONE = Ranks()


def _wait(coming: "Future[Any]", seconds: float) -> None:
    try:
        coming.exception(timeout=seconds)
    except TimeoutError:
        return
