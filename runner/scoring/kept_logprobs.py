"""Computes the sampled logprobs of a finished completion again, from the token ids that the filters kept."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..caches.image_blocks import uncut
from ..core.arrays import Floats, Ids
from ..engine.prefill import call_tokens
from ..engine.setup import Setup
from ..layers.kv_cache import evaluate_caches, make_caches


def kept_logprobs(setup: Setup, prompt: Ids, completion: Ids, kept: Sequence[Ids], temperature: float) -> Floats:
    """Returns the logprobs [N] of a completion's tokens under softmax(logits / temperature) over the kept ids alone.

    prompt: [T]; completion: [N]; kept: for each completion token the ids that it was drawn from; temperature: above 0.
    """
    ids, first = np.concatenate([prompt, completion]), len(prompt) - 1
    caches, at, logprobs = make_caches(setup.model, 1, padded=False, kv=setup.kv), 0, list[float]()
    while at < len(ids) - 1:
        n = uncut(setup.model, ids[None, at:-1], call_tokens(setup, 1, len(ids) - 1 - at))
        states = setup.network(ids[None, at : at + n], caches, read="states")[0]
        evaluate_caches(caches)
        positions = np.arange(max(first, at), at + n)
        parts = max(1, -(-len(positions) // setup.logit_rows))
        for part in np.array_split(positions, parts) if len(positions) else ():
            logits = np.array(setup.network.logits(states[mx.array(part - at)]).astype(mx.float32)).astype(np.float64)
            for x, position in zip(logits / temperature, part.tolist(), strict=True):
                allowed = x[kept[position - first]]
                logprobs.append(x[ids[position + 1]] - allowed.max() - np.log(np.exp(allowed - allowed.max()).sum()))
        at += n
    return np.array(logprobs, np.float32)
