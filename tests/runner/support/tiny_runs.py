"""Makes requests for tiny models, and runs them through the engine and the scorer."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from mlx import nn
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome, Scored
from mlx_bulk.runner.core.requests import Generate, Passage, Prompt, Request, Sample, Sampling, ScoreRequest
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.engine.setup import BatchFeatures, Setup
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_bulk.runner.scoring.scorer import Scorer

from .tiny import VOCABULARY, Ids, Network


def request(row: int, prompt: Ids, sampling: Sampling, seeds: Sequence[int] = (0,)) -> Request:
    ids = np.array(prompt, np.int32)
    return Request(row, Prompt("", ids, np.zeros_like(ids)), Generate(sampling, tuple(Sample(i, s) for i, s in enumerate(seeds))))


def greedy(prompts: Sequence[Ids], max_tokens: int = 10) -> list[Request]:
    """Requests of unlike lengths to generate, so that rows leave at different steps."""
    return [request(i, p, Sampling(max_tokens=max_tokens + i % 3, temperature=0.0)) for i, p in enumerate(prompts)]


def setup_of(
    network: Network, way: str = "padded", rows: int = 4, tokens: int = 64, wanted: LogprobOptions | None = None, **more: Any
) -> Setup:
    """A setup in which the probes have found all that ``more`` does not say otherwise."""
    limits = Limits(1 if way == "alone" else rows, tokens, 1e12, 1.0, 1.0, equal_lengths=way not in ("padded", "joined"))
    vocabulary = getattr(network, "vocabulary", VOCABULARY)
    names = {field.name for field in fields(BatchFeatures)}
    features = BatchFeatures(not limits.equal_lengths, ragged=way == "padded", right_padded=True, shared_passages=True)
    head = Head(network) if isinstance(network, nn.Module) else None
    setup = Setup(network, vocabulary, limits, wanted or LogprobOptions(echo=True), features, head=head)
    setup = setup.with_features(**{name: value for name, value in more.items() if name in names})
    return replace(setup, **{name: value for name, value in more.items() if name not in names})


def engine_of(setup: Setup, eos: Sequence[int] = ()) -> Engine:
    def no_stopper(sampling: Sampling) -> Any:
        raise AssertionError(f"there is a stop string: {sampling.stop}")

    return Engine(setup, frozenset(eos), no_stopper)


def outcomes_of(setup: Setup, requests: list[Request], eos: Sequence[int] = ()) -> list[Outcome]:
    """Everything the engine gives for ``requests`` (one window of the backlog), by row and sample."""
    windows = iter([requests])
    found = engine_of(setup, eos).run(lambda wait: next(windows, None))
    return sorted(found, key=lambda o: (o.row, o.sample or 0 if isinstance(o, Failure) else o.index))


def run(setup: Setup, requests: list[Request], eos: Sequence[int] = ()) -> list[Generated]:
    """Returns the completions of all requests. Asserts that no row fails."""
    outcomes = outcomes_of(setup, requests, eos)
    done = [o for o in outcomes if isinstance(o, Generated)]
    assert len(done) == len(outcomes), [o for o in outcomes if not isinstance(o, Generated)]
    return done


def passage(ids: Ids, first: int = 1) -> Passage:
    """A passage of which the tokens from the ``first`` on are scored."""
    return Passage(np.array(ids, np.int32), np.arange(first, len(ids), dtype=np.int32))


def documents(texts: Sequence[Ids]) -> list[ScoreRequest]:
    """A request a text, of which each token but the first is scored."""
    return [ScoreRequest(i, (passage(ids),)) for i, ids in enumerate(texts)]


def multiple_choice(prompts: Sequence[Ids], choices: Sequence[Sequence[Ids]]) -> list[ScoreRequest]:
    """A request a prompt, a passage a choice."""
    return [
        ScoreRequest(i, tuple(passage([*prompt, *choice], len(prompt)) for choice in own))
        for i, (prompt, own) in enumerate(zip(prompts, choices, strict=True))
    ]


def scored_with(scorer: Scorer, requests: list[ScoreRequest]) -> list[Outcome]:
    """Everything the scorer gives for ``requests`` (one window), by row."""
    windows = iter([requests])
    return sorted(scorer.run(lambda wait: next(windows, None)), key=lambda outcome: outcome.row)


def scored(setup: Setup, requests: list[ScoreRequest], reference: Setup | None = None) -> list[Scored]:
    """Returns the scores of all requests. Asserts that no row fails."""
    outcomes = scored_with(Scorer(setup, reference), requests)
    done = [o for o in outcomes if isinstance(o, Scored)]
    assert [o.row for o in done] == sorted(r.row for r in requests), [o for o in outcomes if not isinstance(o, Scored)]
    return done
