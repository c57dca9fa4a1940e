"""Makes prompts that begin alike, for tests of shared prefixes."""

from collections.abc import Sequence

import numpy as np
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.scheduler.prompt_prefixes import prefilled_ids

from .tiny import VOCABULARY, Ids, prompts_of
from .tiny_runs import request

SYSTEM, DOCUMENTS = 40, (30, 45, 20)  # tokens of what all begin with, and of what some go on with
TAILS = (9, 1, 4, 17, 1)  # tokens behind them; the first of these begins alike nowhere, and of one nothing is left to feed
OTHERS = (5, 30, 1, 2, 60)  # tokens of prompts that share nothing


def prompts(seed: int = 7) -> list[Ids]:
    """A few questions to each of some documents behind one system prompt, one of them three times; and others."""
    rng = np.random.default_rng(seed)

    def ids(n: int) -> Ids:
        return rng.integers(0, VOCABULARY, n).tolist()

    system = ids(SYSTEM)
    asked = [system + document + ids(n) for document in [ids(n) for n in DOCUMENTS] for n in TAILS]
    return [*asked, list(asked[2]), list(asked[2]), *prompts_of(OTHERS)]


def requests(texts: Sequence[Ids], temperature: float = 0.0) -> list[Request]:
    """Rows that end at different steps, some with several samples."""
    return [
        request(i, ids, Sampling(max_tokens=4 + i % 5, temperature=temperature), [i, 100 + i, 200 + i][: 1 + (i % 4 == 0) + (i % 8 == 0)])
        for i, ids in enumerate(texts)
    ]


def naive(asked: Sequence[Request]) -> int:
    """Tokens that are prefilled where each prompt is by itself."""
    return sum(len(prefilled_ids(one)) for one in asked)
