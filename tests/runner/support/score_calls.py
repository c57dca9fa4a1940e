"""Makes requests for the scorer's tests, and setups in which the tiny models score them."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_bulk.runner.core.outcomes import Scored
from mlx_bulk.runner.core.requests import ScoreRequest
from mlx_bulk.runner.engine.setup import Setup

from .tiny import EXACT, LENGTHS, Network, build, prompts_of
from .tiny_runs import multiple_choice, setup_of

TEXTS = prompts_of([n for n in LENGTHS if n > 1])


def ragged_choices() -> list[ScoreRequest]:
    """Prompts of unlike lengths behind few-shot examples (two kinds), each with choices of unlike lengths, some of one token."""
    shots, prompts = prompts_of((40, 45)), prompts_of((20, 26, 3, 21, 22, 30), seed=1)
    choices = [prompts_of((3, 1, 5, 2), seed=2 + i) for i in range(5)] + [prompts_of((1, 1, 1), seed=9)]
    return multiple_choice([shots[i % 2] + p for i, p in enumerate(prompts)], choices)


def setup(name: str, **more: Any) -> Setup:
    return setup_of(build(name), "exact" if name in EXACT else "padded", **more)


def as_bytes(outcomes: Sequence[Scored]) -> list[list[bytes]]:
    return [[getattr(s, field).tobytes() for s in o.scores for field in s.__slots__ if getattr(s, field) is not None] for o in outcomes]


class Calls(nn.Module):
    """A model that notes the shapes it is called with."""

    def __init__(self, network: Network):
        super().__init__()
        self.model, self.layers = network, network.layers
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.shapes.append(tuple(tokens.shape))
        return self.model(tokens, cache=cache)
