"""Tests deterministic batches: they stay together until the last row is done, so that a row's bytes don't depend on others."""

from collections import deque
from dataclasses import replace

import pytest
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Sampling
from mlx_bulk.runner.scheduler.limits import Load
from mlx_bulk.runner.scheduler.request_queue import longest_first, next_group

from ..support.naive_truth import assert_same
from ..support.tiny import build, prompts_of
from ..support.tiny_runs import greedy, request, run, setup_of


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_static_batch_keeps_a_rows_bytes(name: str):
    network, sampling = build(name), Sampling(max_tokens=10, top_p=0.9)
    setup = setup_of(network, static=True, tokens=256, wanted=LogprobOptions(echo=True, top=3, stats=True))
    lengths = (9, 12, 4, 12)
    first, second = prompts_of(lengths, seed=1), prompts_of(lengths, seed=2)
    second[2] = first[2]
    a, b = (run(setup, [request(i, p, sampling, [i]) for i, p in enumerate(prompts)], eos=range(40)) for prompts in (first, second))
    assert [len(o.ids) for o in a] != [len(o.ids) for o in b]  # mates end at other steps
    assert bytes_of(a[2]) == bytes_of(b[2])
    assert bytes_of(a[0]) != bytes_of(b[0])


def bytes_of(outcome: Generated) -> list[bytes]:
    assert outcome.echo is not None
    parts = [outcome.ids, outcome.sampled_logprobs]
    for scores in (outcome.scores, outcome.echo):
        parts += [found for field in scores.__slots__ if (found := getattr(scores, field)) is not None]
    return [part.tobytes() for part in parts]


def test_a_static_batch_gives_the_same_results():
    network, requests = build("llama"), greedy(prompts_of())
    assert_same(run(setup_of(network), requests), run(setup_of(network, static=True), requests))


def test_a_static_batch_is_made_by_rows_alone():
    """Its rows may not depend on the memory that a machine has."""
    setup = setup_of(build("llama"), rows=3, static=True)
    tight = replace(setup, limits=replace(setup.limits, kv_bytes=50.0))
    waiting = deque(longest_first(greedy(prompts_of())))
    assert len(next_group(waiting, tight.group_limits, Load())) == 3
