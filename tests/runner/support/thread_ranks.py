"""Ranks that are threads of this process: what mlx would exchange goes through memory."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from mlx_bulk.runner.ranks.ranks import Ranks

T = TypeVar("T")
PATIENCE = 30.0  # seconds after which ranks that part have failed


class _Exchange:
    """Where all ranks lay their arrays, and meet."""

    def __init__(self, size: int):
        self.arrays: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class _ThreadRanks(Ranks):
    """One rank."""

    def __init__(self, rank: int, exchange: _Exchange):
        self._exchange = exchange
        super().__init__(None, rank, len(exchange.arrays))

    def _all(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        exchange = self._exchange
        exchange.arrays[self.rank] = array
        exchange.barrier.wait(PATIENCE)
        gathered = np.concatenate(exchange.arrays)
        exchange.barrier.wait(PATIENCE)
        self.beats += 1
        return gathered

    def _summed(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        mine = array if self.first else np.zeros_like(array)
        return self._all(mine).reshape(self.size, -1).sum(0, dtype=array.dtype) if array.size else array


def on_all(size: int, work: Callable[[Ranks], T]) -> list[T | Exception]:
    """Has ``size`` ranks do ``work``; returns what each came to, or raised."""
    exchange = _Exchange(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(_ThreadRanks(rank, exchange))
        except Exception as error:
            results[rank] = error
            if isinstance(error, threading.BrokenBarrierError | AssertionError):
                exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the ranks have parted"
    return results
