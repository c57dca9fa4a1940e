"""Computes what is right for a tiny model by mlx-lm alone, with full forwards, and compares outcomes with it.

Tolerances are the contract's for float32.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.outcomes import Generated, Scored
from mlx_bulk.runner.core.requests import ScoreRequest
from mlx_lm.generate import generate_step
from numpy.typing import NDArray

from .tiny import Ids, Network

ECHO_TOLERANCE = 1e-4  # against a full forward: only the order of float32 sums differs
DECODE_TOLERANCE, DECODE_MEAN = 2e-4, 3e-5  # against a full forward of the same tokens: other shapes, other kernels
TIE = 1e-4  # two logits so close may change places


def log_probabilities(network: Network, ids: Ids) -> NDArray[np.float64]:
    """The naive truth: one full forward of ``ids`` [T] without caches, log_softmax in float64, [T, V]."""
    x = np.array(network(mx.array([ids]))[0].astype(mx.float32)).astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def assert_scores_are_naive(network: Network, requests: Sequence[ScoreRequest], outcomes: Sequence[Scored]) -> None:
    """Each scored token's logprob is that of a full forward of its passage."""
    rows: list[NDArray[np.float64]] = []
    for asked, outcome in zip(requests, outcomes, strict=True):
        for part, scores in zip(asked.passages, outcome.scores, strict=True):
            rows.append(log_probabilities(network, part.ids.tolist())[part.positions - 1])
            truth = rows[-1][np.arange(len(part.positions)), part.ids[part.positions]]
            np.testing.assert_allclose(scores.logprobs, truth, rtol=0, atol=ECHO_TOLERANCE)
    assert np.concatenate(rows).std() > 1  # else a wrong target would hide within the tolerance


def assert_greedy_as_alone(network: Network, prompts: Sequence[Ids], outcomes: Sequence[Generated]) -> None:
    """Each row's tokens are those of mlx-lm on the row alone, up to the first near-tie; at most a tenth of the rows may have one."""
    ties = 0
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        ids = outcome.ids.tolist()
        alone = [int(token) for token, _ in generate_step(mx.array(prompt), network, max_tokens=len(ids))]
        if ids != alone:
            at = next(i for i, (a, b) in enumerate(zip(ids, alone, strict=True)) if a != b)
            here = log_probabilities(network, prompt + ids[:at])[-1]
            assert abs(here[ids[at]] - here[alone[at]]) < TIE, f"row {outcome.row}, token {at}: {ids[at]}, alone {alone[at]}"
            ties += 1
    assert ties <= len(prompts) // 10


def assert_echo_is_naive(network: Network, prompts: Sequence[Ids], outcomes: Sequence[Generated]) -> None:
    """Each prompt token's logprob is that of a full forward."""
    rows: list[NDArray[np.float64]] = []
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.echo is not None
        rows.append(log_probabilities(network, prompt))
        truth = rows[-1][np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(outcome.echo.logprobs, truth, rtol=0, atol=ECHO_TOLERANCE)
    assert np.concatenate(rows).std() > 1  # else a wrong target would hide within the tolerance


def assert_decode_is_echo(network: Network, prompts: Sequence[Ids], outcomes: Sequence[Generated]) -> None:
    """Each generated token's logprob is that of a full forward of prompt and completion."""
    differences: list[float] = []
    rows: list[NDArray[np.float64]] = []
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        whole = prompt + outcome.ids.tolist()
        truth = log_probabilities(network, whole)[len(prompt) - 1 : -1]
        rows.append(truth)
        differences += (outcome.scores.logprobs - truth[np.arange(len(truth)), outcome.ids]).tolist()
    assert np.abs(differences).max() <= DECODE_TOLERANCE
    assert np.abs(differences).mean() <= DECODE_MEAN
    assert np.concatenate(rows).std() > 1


def assert_same(left: Sequence[Generated], right: Sequence[Generated]) -> None:
    """Two runs of the same requests agree: tokens up to a near-tie of logprobs, logprobs within 1e-4."""
    for a, b in zip(left, right, strict=True):
        assert (a.row, a.sample) == (b.row, b.sample)
        differ = np.flatnonzero(a.ids[: len(b.ids)] != b.ids[: len(a.ids)])
        same = int(differ[0]) if len(differ) else len(a.ids)
        if len(differ):
            assert abs(a.scores.logprobs[same] - b.scores.logprobs[same]) < TIE, f"row {a.row}, token {same}"
        else:
            assert len(a.ids) == len(b.ids)
        np.testing.assert_allclose(a.scores.logprobs[:same], b.scores.logprobs[:same], rtol=0, atol=1e-4)
        np.testing.assert_allclose(a.sampled_logprobs[:same], b.sampled_logprobs[:same], rtol=0, atol=1e-4)
        assert_same_scores(a.echo, b.echo)


def assert_same_scores(a: Scores | None, b: Scores | None) -> None:
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-4)
