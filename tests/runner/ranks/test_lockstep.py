"""What decides otherwise on each machine is the first rank's, or the least of all."""

import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.kernels.sampling.draw import Drawn, Launched
from mlx_bulk.runner.engine.oom_backoff import MemoryBackoff
from mlx_bulk.runner.ranks.lockstep import shared_draw
from mlx_bulk.runner.ranks.ranks import ALONE
from mlx_bulk.runner.scheduler.limits import Limits, least_limits

LIMITS = Limits(rows=8, tokens=512, kv_bytes=1000.0, token_bytes=10.0, row_bytes=0.0)


class Second:
    """The second rank of two, as far as it is asked; the first has drawn the ids 7, 8."""

    several = True

    def of_first(self, array: mx.array) -> mx.array:
        return mx.zeros_like(array) + mx.array([7, 8])

    def end_without_memory(self, doing: str) -> None:
        sys.exit(f"ended while {doing}")


def test_ids_drawn_are_the_first_ranks():
    own = Drawn(np.array([1, 2], np.int32), np.zeros(2, np.float32))
    launched = Launched(mx.array(own.ids), lambda: (own, Scores(own.sampled)))
    assert shared_draw(launched, ALONE) is launched
    second: Any = Second()
    shared = shared_draw(launched, second)
    assert (np.array(shared.ids).tolist(), shared.read()[0].ids.tolist()) == ([7, 8], [7, 8])


def test_a_rank_without_memory_ends_before_it_decides_anything():
    second: Any = Second()
    room = MemoryBackoff(LIMITS, ranks=second)
    with pytest.raises(SystemExit, match=r"ended while decoding 8 rows \(no memory\)"):
        room.halve(8, 100, "decoding 8 rows", "no memory")


def test_limits_of_a_group_are_those_of_the_rank_with_the_least_room():
    small = Limits(rows=16, tokens=256, kv_bytes=1500.0, token_bytes=30.0, row_bytes=4.0)  # fewer tokens, though more bytes
    least = least_limits([LIMITS, small])
    assert (least.kv_bytes, least.token_bytes, least.row_bytes, least.rows, least.tokens) == (1500.0, 30.0, 4.0, 8, 256)
    assert least_limits([LIMITS]) == LIMITS
