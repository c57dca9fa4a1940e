"""Tests that a batch gives what each row gives alone: mlx-lm's tokens, and logprobs of a naive full forward."""

import numpy as np
import pytest
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw as sampling_kernel
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Sampling

from ..support.naive_truth import assert_decode_is_echo, assert_echo_is_naive, assert_greedy_as_alone, assert_same, log_probabilities
from ..support.tiny import CONFIGS, EXACT, LENGTHS, PADDED, VOCABULARY, WINDOW, Chain, build, prompts_of
from ..support.tiny_runs import engine_of, greedy, request, run, setup_of

QUICK = ("llama", "gemma3_text", "mamba2")  # a model of each kind of cache
WAYS = [
    *((name, "padded") for name in PADDED),
    *((name, "exact") for name in (*EXACT, "llama", "mamba2")),
    ("mamba", "joined"),
    ("mamba", "alone"),
]
QUICK_WAYS = (("llama", "padded"), ("gemma3_text", "padded"), ("mamba", "joined"))  # and a recurrent state
TWICE = 4e-4  # two logprobs, each off by 2e-4, may change places


@pytest.mark.parametrize(("name", "way"), [pytest.param(*each, marks=() if each in QUICK_WAYS else pytest.mark.slow) for each in WAYS])
def test_mixed_lengths_are_as_each_row_alone(name: str, way: str):
    network, prompts = build(name), prompts_of()
    outcomes = run(setup_of(network, way), greedy(prompts))
    assert [len(o.ids) for o in outcomes] == [10 + i % 3 for i in range(len(prompts))]
    assert_greedy_as_alone(network, prompts, outcomes)
    assert_echo_is_naive(network, prompts, outcomes)
    assert_decode_is_echo(network, prompts, outcomes)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PADDED])
def test_chunks_of_a_prefill_change_nothing(name: str):
    network, prompts = build(name), prompts_of()
    outcomes = run(setup_of(network, tokens=10), greedy(prompts, max_tokens=4))  # two or three tokens a row in a chunk
    assert_greedy_as_alone(network, prompts, outcomes)
    assert_echo_is_naive(network, prompts, outcomes)
    assert_decode_is_echo(network, prompts, outcomes)


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gemma3_text")), "lfm2"])
def test_neither_batch_size_nor_order_of_rows_changes_results(name: str):
    network, prompts = build(name), prompts_of()
    requests = greedy(prompts)
    one = run(setup_of(network, rows=1), requests)
    for rows in (3, 16):
        assert_same(one, run(setup_of(network, rows=rows, tokens=256), requests))
    shuffled = [requests[i] for i in np.random.default_rng(1).permutation(len(requests))]
    assert_same(one, run(setup_of(network, rows=5, tokens=256), shuffled))


@pytest.mark.parametrize("tokens", [7, pytest.param(512, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((1, 3, 2, 6), marks=pytest.mark.slow),
        (WINDOW - 1, WINDOW, WINDOW + 1, 2),
        (40, 5, 30, 1),
        pytest.param((1, 1, 2, 1), marks=pytest.mark.slow),
    ],
)
def test_decode_crosses_the_border_of_a_sliding_window(lengths: tuple[int, ...], tokens: int):
    network, prompts = build("gemma3_text"), prompts_of(lengths, seed=3)
    outcomes = run(setup_of(network, rows=4, tokens=tokens), greedy(prompts, max_tokens=3 * WINDOW))
    assert_greedy_as_alone(network, prompts, outcomes)
    assert_echo_is_naive(network, prompts, outcomes)
    assert_decode_is_echo(network, prompts, outcomes)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mamba2", "lfm2"))])
def test_rows_leave_and_join_in_the_middle(name: str):
    """Each row ends at a step of its own, so that every step somebody leaves, and three slots see nine rows."""
    network, prompts = build(name), prompts_of((4, 25, 1, 13, 2, 9, 20, 3, 6), seed=4)
    requests = [request(i, p, Sampling(max_tokens=1 + 5 * i % 13, temperature=0.0)) for i, p in enumerate(prompts)]
    setup = setup_of(network, rows=3, tokens=32)
    windows = iter([requests])
    engine = engine_of(setup)
    outcomes = list(engine.run(lambda wait: next(windows, None)))
    assert engine.progress.steps < sum(len(o.ids) for o in outcomes if isinstance(o, Generated))  # rows did share steps
    finished = [o.row for o in outcomes]
    assert finished != sorted(finished)
    again = run(setup, requests)
    assert_greedy_as_alone(network, prompts, again)
    assert_decode_is_echo(network, prompts, again)


def test_a_batch_of_one_length_leaves_by_index():
    network, prompts = build("gemma2"), prompts_of((6, 6, 6, 6), seed=5)
    requests = [request(i, p, Sampling(max_tokens=(3, 9, 1, 6)[i], temperature=0.0)) for i, p in enumerate(prompts)]
    outcomes = run(setup_of(network, "exact"), requests)
    assert_greedy_as_alone(network, prompts, outcomes)
    assert_decode_is_echo(network, prompts, outcomes)


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_top_logprobs_ranks_and_entropies(name: str):
    network, prompts = build(name), prompts_of((9, 2, 17), seed=6)
    way = "padded" if name in PADDED else "exact"
    outcomes = run(setup_of(network, way, wanted=LogprobOptions(echo=True, top=5, stats=True)), greedy(prompts))
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        whole = prompt + outcome.ids.tolist()
        truth = log_probabilities(network, whole)[:-1]
        split = len(prompt) - 1
        for scores, rows, targets in ((outcome.echo, truth[:split], prompt[1:]), (outcome.scores, truth[split:], outcome.ids)):
            assert scores is not None
            assert scores.top_ids is not None
            assert scores.top_logprobs is not None
            assert scores.ranks is not None
            assert scores.entropies is not None
            best = np.sort(rows, axis=1)[:, ::-1][:, :5]
            np.testing.assert_allclose(scores.top_logprobs, best, rtol=0, atol=2e-4)
            np.testing.assert_allclose(np.take_along_axis(rows, scores.top_ids.astype(np.int64), axis=1), best, rtol=0, atol=2e-4)
            np.testing.assert_allclose(scores.entropies, -(np.exp(rows) * rows).sum(axis=1), rtol=0, atol=1e-3)
            mine = rows[np.arange(len(rows)), targets]
            surely, perhaps = (rows > mine[:, None] + TWICE).sum(axis=1), (rows > mine[:, None] - TWICE).sum(axis=1)
            assert ((scores.ranks > surely) & (scores.ranks <= perhaps)).all()


def test_every_family_is_tried():
    assert {name for name, _ in WAYS} == set(CONFIGS)
    assert min(LENGTHS) == 1
    assert max(LENGTHS) > 3 * WINDOW


def test_a_model_without_a_preference_gives_log_v_and_the_lowest_ids():
    flat = Chain(np.zeros((VOCABULARY, VOCABULARY), np.float32))
    outcome = run(setup_of(flat, wanted=LogprobOptions(echo=True, top=3, stats=True)), greedy([[7, 8, 9]], max_tokens=2))[0]
    assert outcome.ids.tolist() == [0, 0]
    assert outcome.scores.top_ids is not None
    assert outcome.scores.top_ids.tolist() == [[0, 1, 2]] * 2
    assert outcome.echo is not None
    assert outcome.echo.ranks is not None
    assert outcome.echo.ranks.tolist() == [9, 10]
    np.testing.assert_allclose(outcome.echo.logprobs, -np.log(VOCABULARY), rtol=0, atol=1e-6)
    assert outcome.scores.entropies is not None
    np.testing.assert_allclose(outcome.scores.entropies, np.log(VOCABULARY), rtol=0, atol=1e-5)


def test_the_engine_stops_between_steps_when_asked():
    asked = iter([False, False, True])
    windows = iter([greedy(prompts_of((4, 4)), max_tokens=50)])
    engine = engine_of(setup_of(build("llama")))
    assert list(engine.run(lambda wait: next(windows, None), lambda: next(asked))) == []
    assert engine.progress.steps == 2


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=8, temperature=0.0),
        Sampling(
            max_tokens=8,
            temperature=0.8,
            top_p=0.9,
            top_k=40,
            min_p=0.01,
            repetition_penalty=1.2,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            logit_bias={3: 2.0},
            min_tokens=3,
            stop_token_ids=(7,),
        ),
    ],
    ids=["greedy", "everything"],
)
def test_the_way_of_metal_and_cuda_agrees_with_the_cpus(monkeypatch: pytest.MonkeyPatch, sampling: Sampling):
    """There the references in mx ops run whole; here they run on the CPU device, against NumPy's way through the same engine."""
    setup = setup_of(build("llama"), wanted=LogprobOptions(echo=True, top=3, stats=True))
    asked = [request(i, prompt, sampling, seeds=(1000 + i,)) for i, prompt in enumerate(prompts_of())]
    here = run(setup, asked)
    for module in (logprobs, sampling_kernel):
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)
    there = run(setup, asked)
    assert_same(here, there)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a.sampled_logprobs, b.sampled_logprobs, rtol=0, atol=1e-5)
        for mine, theirs in ((a.scores, b.scores), (a.echo, b.echo)):
            assert mine is not None
            assert theirs is not None
            assert [x.tolist() for x in (mine.top_ids, mine.ranks) if x is not None] == [
                x.tolist() for x in (theirs.top_ids, theirs.ranks) if x is not None
            ]
