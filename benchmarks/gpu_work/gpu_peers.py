"""The peers of ``gpu.py`` that share one network in one process: ours and mlx-lm's, for generation and for scoring.

mlx-lm is used as its own users would, in its fastest way: ``BatchGenerator`` with all rows at once, whose logprobs are not read,
with the faster of two prefill sizes; scoring by forward passes over sorted batches, with the best of several sizes.
"""

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from gpu_work.gpu_stages import Work
from networks import shapes
from networks.random_models import mx
from peers import ours
from peers.completing import Completing
from peers.torch_peer import batches

import numpy as np
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import Passage, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kernel_injection import only_inside, substitute
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_lm.generate import BatchGenerator, generation_stream
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

PREFILLS = (8, 64)  # prompts that mlx-lm prefills together; 8 is its default
BUDGETS = (2048, 8192, 32768)  # padded tokens of a batch that mlx-lm scores
LOGITS = 6 << 30  # bytes that such a batch's logits may take in float32
Completed = Callable[[Completing], dict[str, Any]]


def ours_inside(model: LanguageModel) -> Callable[[], AbstractContextManager[Any]]:
    """What puts our functions into the network for the length of a block: the peers run the same one without them."""
    return only_inside([model.network]) if substitute(model.network, model.vocabulary, None) else nullcontext


def our_setup(model: LanguageModel, work: Work, kv: int | None = None) -> Setup:
    """The project's own way of running the model, with its checks. Raises whatever refuses the work."""
    settings = {} if kv is None else {"kv_bits": kv}
    wanted = LogprobOptions(echo=True) if work.kind == "score" else LogprobOptions()
    rows = "auto" if work.kind == "score" else work.completing.rows
    return fit(model, BatchConfig(rows=rows, **settings), wanted).setup


def our_completions(setup: Setup, samples: int) -> Completed:
    """Through the engine."""
    return lambda given: ours.found(shapes.generated(ours.engine(setup), ours.requests(given, samples)))


def our_scores(setup: Setup, given: Completing) -> dict[str, Any]:
    """Through the scorer: each text's logprobs."""
    asked = [
        ScoreRequest(i, (Passage(np.array(ids, np.int32), np.arange(1, len(ids), dtype=np.int32)),)) for i, ids in enumerate(given.prompts)
    ]
    outcomes = shapes.scored(shapes.Scorer(setup), asked)
    return {"logprobs": [outcome.scores[0].logprobs.tolist() for outcome in outcomes]}


def peer_completions(network: Any, work: Work, prefill: int) -> Completed:
    """``BatchGenerator``: each prompt as many times as it has samples. A prefix is prefilled with each row, as nothing tells it apart."""

    def completed(given: Completing) -> dict[str, Any]:
        prompts = [prompt for prompt in given.prompts for _ in range(work.samples)]
        return _generated(network, given, prompts, prefill, None)

    return completed


def peer_on_prefix(network: Any, work: Work, prefill: int) -> Completed:
    """``BatchGenerator`` with a cache that holds the prefix, which the user has computed once, copied for each row."""

    def completed(given: Completing) -> dict[str, Any]:
        cache = make_prompt_cache(network)
        network(mx.array([given.prompts[0][: work.prefix]]), cache=cache)
        mx.eval([layer.state for layer in cache])
        prompts = [prompt[work.prefix :] for prompt in given.prompts]
        return _generated(network, given, prompts, prefill, [copy.deepcopy(cache) for _ in prompts])

    return completed


def _generated(network: Any, given: Completing, prompts: list[list[int]], prefill: int, caches: list[Any] | None) -> dict[str, Any]:
    mx.random.seed(0)
    generator = BatchGenerator(
        network, max_tokens=given.new, sampler=_sampler(given), completion_batch_size=len(prompts), prefill_batch_size=prefill
    )
    ids: dict[int, list[int]] = {uid: [] for uid in generator.insert(prompts, caches=caches)}
    while responses := generator.next_generated():
        for response in responses:
            ids[response.uid].append(response.token)
    generator.close()
    return {"ids": list(ids.values())}


def _sampler(given: Completing) -> Callable[[Any], Any] | None:
    if given.greedy:
        return None
    top_p = make_sampler(1.0, given.top_p)  # its own order is top-p first: others keep the tokens that are likely at the temperature
    return lambda logprobs: top_p(logprobs / given.temperature)


def peer_scores(network: Any, given: Completing, budget: int) -> dict[str, Any]:
    """Sorted batches, pads behind; each batch one forward pass, a logsumexp in float32, and one read."""
    rows = given.prompts
    found: list[list[float]] = [[] for _ in rows]
    for batch in batches(sorted(range(len(rows)), key=lambda row: len(rows[row])), rows, budget):
        width = len(rows[batch[-1]])
        ids = mx.array([rows[row] + [0] * (width - len(rows[row])) for row in batch])
        logits = network(ids[:, :-1]).astype(mx.float32)
        logprobs = mx.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0] - mx.logsumexp(logits, axis=-1)
        for row, one in zip(batch, np.array(logprobs), strict=True):
            found[row] = one[: len(rows[row]) - 1].tolist()
    return {"logprobs": found}


def budgets(vocabulary: int) -> list[int]:
    """Those whose logits fit."""
    return [budget for budget in BUDGETS if 4 * budget * vocabulary <= LOGITS] or [BUDGETS[0]]


def seconds(run: Callable[[], Any]) -> float:
    """Of one run, with nothing under way before: mlx-lm leaves a step behind that it has begun too early."""
    mx.synchronize(generation_stream)
    mx.synchronize()
    began = time.perf_counter()
    run()
    mx.synchronize()
    return time.perf_counter() - began


def short(given: Completing, new: int) -> Completing:
    """The same rows with fewer new tokens."""
    return replace(given, new=new)
