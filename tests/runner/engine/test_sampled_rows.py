"""Tests a row's own sampling in the engine: random stream, samples, filters."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Request, Sampling
from numpy.typing import NDArray

from ...oracle import distribution, edited
from ..support.naive_truth import assert_decode_is_echo, assert_same, log_probabilities
from ..support.tiny import Chain, Network, build, prompts_of, random_chain
from ..support.tiny_runs import engine_of, request, run, setup_of

MIXED = [
    Sampling(max_tokens=12),
    Sampling(max_tokens=9, temperature=0.0),
    Sampling(max_tokens=14, temperature=0.7, top_k=20),
    Sampling(max_tokens=8, temperature=1.5, top_p=0.8, repetition_penalty=1.3),
    Sampling(max_tokens=11, min_p=0.05, presence_penalty=0.8, frequency_penalty=0.2),
    Sampling(max_tokens=10, temperature=0.9, logit_bias={3: 4.0, 7: -100.0}, min_tokens=4, stop_token_ids=(3,)),
    Sampling(max_tokens=9, xtc_probability=0.5, xtc_threshold=0.02, min_p=0.01),
    Sampling(max_tokens=9, temperature=1.2, typical_p=0.6),
    Sampling(max_tokens=14, temperature=0.6, dry_multiplier=1.5, dry_allowed_length=1, dry_range=20, logit_bias={5: 7.0, 6: 7.0}),
]


def uniform(seed: int, number: int) -> float:
    """The stream's number ``number``, from its start: the upper 24 bits of Philox's."""
    return int(np.random.Philox(key=seed).random_raw(number + 1)[-1] >> np.uint64(40)) * 2.0**-24


def coin(seed: int, number: int) -> float:
    """XTC's number: the lower 24 bits of the same."""
    return int(np.random.Philox(key=seed).random_raw(number + 1)[-1] % np.uint64(2**24)) * 2.0**-24


def assert_drawn(network: Network, asked: Request, outcome: Generated, eos: Sequence[int] = ()) -> None:
    """Each token is what the contract's order gives for its number of the stream, from a full forward's logits."""
    s, prompt, ids = asked.work.sampling, asked.prompt.ids.tolist(), outcome.ids.tolist()
    for t, token in enumerate(ids):
        # log-probabilities stand for logits: a constant matters to the repetition penalty alone
        logits = full_logits(network, prompt + ids[:t]) if s.penalties else log_probabilities(network, prompt + ids[:t])[-1]
        p = distribution(edited(logits.tolist(), s, prompt, ids[:t], eos, asked.work.breakers), s, coin(outcome.sample.seed, t))
        end = np.cumsum(p)[token]
        u = uniform(outcome.sample.seed, t) if s.temperature else 0.5
        slack = 1e-4  # logits of other shapes differ by 1e-5, and the CDF by as much
        assert s.temperature == 0 or end - p[token] - slack <= u < end + slack, f"row {outcome.row}, token {t}"
        assert p[token] > 0
        np.testing.assert_allclose(outcome.sampled_logprobs[t], np.log(p[token]), rtol=0, atol=3e-4)


def full_logits(network: Network, ids: list[int]) -> NDArray[np.float64]:
    return np.array(network(mx.array([ids]))[0, -1]).astype(np.float64)


def requests_of(lengths: Sequence[int], seeds: Sequence[int] = (0,)) -> list[Request]:
    prompts = prompts_of(lengths, seed=8)
    return [request(i, p, MIXED[i % len(MIXED)], [1000 * i + s for s in seeds]) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_each_row_is_drawn_by_its_own_parameters_and_stream(name: str):
    network, requests = build(name), requests_of((5, 21, 1, 9, 13, 2, 7, 30))
    for asked, outcome in zip(requests, run(setup_of(network), requests), strict=True):
        assert_drawn(network, asked, outcome)


def test_the_breakers_of_a_request_reach_dry():
    """Without the breaker the row would be drawn otherwise."""
    network = build("llama")
    sampling = Sampling(max_tokens=30, temperature=0.5, dry_multiplier=4.0, dry_allowed_length=1, logit_bias={5: 9.0, 6: 9.0, 7: 9.0})
    plain = request(0, prompts_of((6,), seed=8)[0], sampling, [3])
    breaking = replace(plain, work=replace(plain.work, breakers=frozenset([5])))
    (free,), (broken,) = run(setup_of(network), [plain]), run(setup_of(network), [breaking])
    assert_drawn(network, plain, free)
    assert_drawn(network, breaking, broken)
    assert free.ids.tolist() != broken.ids.tolist()


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3_text", marks=pytest.mark.slow)])
def test_seeded_rows_depend_on_neither_batch_size_nor_order(name: str):
    network, requests = build(name), requests_of((5, 21, 1, 9, 13, 2, 7, 30))
    one = run(setup_of(network, rows=1), requests)
    for rows in (3, 16):
        assert_same(one, run(setup_of(network, rows=rows, tokens=256), requests))
    assert_same(one, run(setup_of(network, rows=4), requests[::-1]))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("llama", "padded"),
        pytest.param("gemma3_text", "padded", marks=pytest.mark.slow),
        ("lfm2", "padded"),
        pytest.param("mamba", "exact", marks=pytest.mark.slow),
        pytest.param("llama", "alone", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("samples", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_samples_of_one_prefill_are_as_each_alone(name: str, way: str, samples: int):
    """Seven samples for four slots: the rest waits for room, with the prompt's cache kept aside."""
    network = build(name)
    sampling = Sampling(max_tokens=12, temperature=1.3)
    prompts = prompts_of((6, 6, 15), seed=2)
    forked = run(setup_of(network, way), [request(i, p, sampling, [50 * i + s for s in range(samples)]) for i, p in enumerate(prompts)])
    assert [(o.row, o.sample.index) for o in forked] == [(i, s) for i in range(3) for s in range(samples)]
    assert len({tuple(o.ids) for o in forked[:samples]}) == samples
    each = [request(i, prompts[o.row], sampling, [o.sample.seed]) for i, o in enumerate(forked)]
    for i, (alone, outcome) in enumerate(zip(run(setup_of(network, way, rows=1), each), forked, strict=True)):
        assert_same([alone], [replace(outcome, row=i, sample=alone.sample)])
    assert_decode_is_echo(network, [prompts[o.row] for o in forked], forked)


def test_one_prompt_with_many_samples_is_prefilled_once():
    windows = iter([[request(0, prompts_of((20,))[0], Sampling(max_tokens=3), range(9))]])
    engine = engine_of(setup_of(build("llama"), rows=4))
    assert len(list(engine.run(lambda wait: next(windows, None)))) == 9
    assert engine.progress.prefilled == 19


def test_the_stream_goes_on_across_blocks_of_numbers():
    """Token t uses number t of its stream, whatever the engine draws ahead: 150 tokens, in a batch and joining late."""
    chain = random_chain(40)
    requests = [request(i, [i + 1] * (i + 1), Sampling(max_tokens=150 - 40 * i), [77 + i]) for i in range(3)]
    for rows in (2, 3):
        for asked, outcome in zip(requests, run(setup_of(chain, rows=rows), requests), strict=True):
            assert len(outcome.ids) == asked.work.sampling.max_tokens
            assert_drawn_by_chain(chain, asked, outcome)


def assert_drawn_by_chain(chain: Chain, asked: Request, outcome: Generated) -> None:
    table = np.array(chain.table).astype(np.float64)
    last = int(asked.prompt.ids[-1])
    for t, token in enumerate(outcome.ids.tolist()):
        ends = np.cumsum(distribution(table[last].tolist(), asked.work.sampling))
        u = uniform(outcome.sample.seed, t)
        assert token == np.searchsorted(ends, u, side="right")
        last = token


def test_samples_beyond_the_memory_wait_their_turn():
    """Each row can become 15 tokens of 2 bytes and a byte besides; there is room for three at once, and 8 samples are asked."""
    network = build("llama")
    asked = [request(0, [1, 2, 3, 4, 5], Sampling(max_tokens=10), seeds=range(8))]
    roomy = setup_of(network, rows=8)
    limits = replace(roomy.limits, token_bytes=2.0, row_bytes=1.0, kv_bytes=3 * 31.0)
    counted = Counted(network)
    assert_same(run(replace(roomy, limits=limits, model=counted, head=None), asked), run(roomy, asked))
    assert counted.rows == {1, 2, 3}  # one for the prefill, at most three that decode


class Counted:
    """A model that notes how many rows its calls have."""

    def __init__(self, network: Network):
        self.network, self.rows = network, set[int]()

    def __call__(self, ids: mx.array, cache: object = None) -> mx.array:
        self.rows.add(ids.shape[0])
        return self.network(ids, cache=cache)

    def __getattr__(self, name: str) -> object:
        return getattr(self.network, name)
