"""Rows with none, one and two pictures against transformers in float32, each row alone there: at every position, and in eight steps.

Pictures' features are transformers' own, so that attention alone is held against it: positions, masks, and what the first blocks add.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID, PromptImage
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import Generate, Passage, Prompt, Request, Sample, Sampling, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kernel_injection import only_inside
from mlx_bulk.runner.layers.kv_cache import finish_padding, make_caches, prepare_padding
from mlx_bulk.runner.layers.network import Network
from numpy.typing import NDArray

from ...hf_vision import ARCHITECTURES, END, IMAGE, START, VOCABULARY, VisionPair, ids_of
from ..support.tiny_runs import run, scored, setup_of

pytestmark = pytest.mark.oracle

BOUND = 3e-5  # the contract is 1e-4; a wrong position or mask moves logprobs by more than 0.1
Row = NDArray[np.int32]


@cache
def pair_of(architecture: str) -> VisionPair:
    return VisionPair(architecture)


@pytest.fixture(
    name="pair",
    params=[(name, kernels) for name in ARCHITECTURES for kernels in (False, True)],
    ids=lambda one: f"{one[0]}-{'kernels' if one[1] else 'mlx'}",
)
def a_pair(request: pytest.FixtureRequest) -> Any:
    name, kernels = request.param
    pair = pair_of(name)
    with only_inside([pair.network])() if kernels else nullcontext():
        yield pair


def logprobs(logits: mx.array) -> NDArray[np.float64]:
    x = np.array(logits).astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def close(found: NDArray[np.float64], truth: NDArray[np.float64]) -> None:
    assert truth.std() > 0.5
    np.testing.assert_allclose(found, truth, rtol=0, atol=BOUND)


def requests_of(rows: Sequence[Row], samples: int = 1, tokens: int = 8, temperature: float = 0.0) -> list[Request]:
    marks: dict[int, float] = {IMAGE: -1e4, IMAGE + 1: -1e4}  # drawn, these would ask transformers for a picture
    work = Generate(Sampling(max_tokens=tokens, temperature=temperature, logit_bias=marks), tuple(Sample(i, i) for i in range(samples)))
    return [Request(i, Prompt("", ids, np.zeros_like(ids)), work) for i, ids in enumerate(rows)]


def setup_for(pair: VisionPair, **more: Any) -> Setup:
    pair.network.vocabulary = VOCABULARY
    return setup_of(pair.network, images=pair.table, **more)


def check_run(pair: VisionPair, setup: Setup, requests: list[Request]) -> None:
    """Echo and completion of each outcome."""
    by_row = {request.row: request.prompt.ids for request in requests}
    for outcome in run(setup, requests):
        prompt = by_row[outcome.row]
        ids = np.concatenate([prompt, outcome.ids])
        truth = pair.truth(ids)
        words = np.flatnonzero(prompt[1:] < FIRST_IMAGE_ID)
        after = np.arange(len(prompt) - 1, len(ids) - 1)
        np.testing.assert_allclose(outcome.scores.logprobs, truth[after, outcome.ids], rtol=0, atol=BOUND)
        if outcome.echo is not None:
            np.testing.assert_allclose(outcome.echo.logprobs[words], truth[words, prompt[words + 1]], rtol=0, atol=BOUND)


@pytest.mark.slow
def test_every_position_of_a_row_alone_in_one_call_and_in_several(pair: VisionPair) -> None:
    network = Network(pair.network, None, pair.table)
    for _, ids in pair.rows():
        truth = pair.truth(ids)
        close(logprobs(network(ids[None], None)[0]), truth)
        cuts = [0, len(ids) - 3, *range(len(ids) - 2, len(ids) + 1)]  # the last three are decode steps
        if pair.architecture != "gemma3":  # whose pictures must be whole
            cuts[1:1] = [n for n in (2, 4, 7) if n < len(ids) - 3]
        caches, parts = make_caches(pair.network, 1, padded=False), list[mx.array]()
        for begin, end in zip(sorted({max(0, n) for n in cuts})[:-1], sorted({max(0, n) for n in cuts})[1:], strict=True):
            step = ids[None, begin:end]
            parts.append(network(mx.array(step) if end - begin == 1 and (step < FIRST_IMAGE_ID).all() else step, caches)[0])
        close(logprobs(mx.concatenate(parts)), truth)


def test_every_position_of_ragged_rows(pair: VisionPair) -> None:
    rows = [ids for _, ids in pair.rows()]
    lengths, width = [len(row) for row in rows], max(map(len, rows))
    tokens = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    caches = make_caches(pair.network, len(rows), padded=True)
    prepare_padding(caches, lengths, width)
    network, parts = Network(pair.network, None, pair.table), list[mx.array]()
    for begin, end in ((0, 20), (20, width)) if pair.architecture == "gemma3" else ((0, 6), (6, 9), (9, 20), (20, width)):
        parts.append(network(tokens[:, begin:end], caches, lengths=[n - begin for n in lengths]))
    finish_padding(caches)
    found = mx.concatenate(parts, axis=1)
    step = network(mx.array([[7 + i] for i in range(len(rows))]), caches)
    for row, ids in enumerate(rows):
        truth = pair.truth(np.append(ids, 7 + row))
        close(np.concatenate([logprobs(found[row, : len(ids)]), logprobs(step[row])]), truth)


WAYS: list[Any] = [
    {},
    {"way": "alone"},
    {"way": "exact"},
    {"way": "joined"},
    {"tokens": 8},
    {"rows": 2},
    {"rows": 3, "prefill_tokens": 8, "chunked": True},
    {"shared_prompts": True, "chunked": True},
    {"shared_prompts": True, "chunked": True, "tokens": 12, "rows": 3},
    {"ahead": True},
    {"static": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("more", WAYS, ids=lambda more: "-".join(f"{name} {value}" for name, value in more.items()) or "plain")
def test_echo_and_eight_tokens_of_rows_that_join_and_leave(pair: VisionPair, more: dict[str, Any]) -> None:
    rows = [ids for _, ids in pair.rows()]
    setup = setup_for(pair, **({"rows": 4, "chunked": True} | more))
    check_run(pair, setup, requests_of(rows))


@pytest.mark.slow
def test_samples_that_share_one_prefill(pair: VisionPair) -> None:
    rows = [ids for _, ids in pair.rows()[:4]]
    check_run(pair, setup_for(pair, rows=5, chunked=True), requests_of(rows, samples=3, temperature=1.0))


def questions(pair: VisionPair) -> list[Row]:
    """Questions about two pictures, a row each, and about both."""
    a, b = pair.picture(3, 2, 1), pair.picture(1, 4, 2)
    stems: list[list[int | PromptImage]] = [[8, START, a, END], [8, START, b, END], [8, START, a, END, 9, START, b, END]]
    return [ids_of([*stem, *tail]) for stem in stems for tail in ([11, 12], [11, 12, 13], [40], [41, 42, 43, 44])]


@pytest.mark.slow
def test_a_picture_in_a_shared_prefix_is_computed_once(pair: VisionPair) -> None:
    rows = questions(pair)
    setup = setup_for(pair, rows=4, shared_prompts=True, chunked=True, tokens=32)
    check_run(pair, setup, requests_of(rows))
    plain = setup_for(pair, rows=4, chunked=True, tokens=32)
    for one, other in zip(run(setup, requests_of(rows)), run(plain, requests_of(rows)), strict=True):
        assert one.ids.tolist() == other.ids.tolist()


def answered(prompt: Row, answer: list[int]) -> Passage:
    ids = np.append(prompt, np.array(answer, np.int32))
    return Passage(ids, np.arange(len(prompt), len(ids), dtype=np.int32))


SCORING: list[dict[str, Any]] = [{"tokens": 16}, {}, {"shared_passages": False}, {"right_padded": False}, {"static": True}]


@pytest.mark.slow
@pytest.mark.parametrize("more", SCORING)
def test_scores_of_answers(pair: VisionPair, more: dict[str, Any]) -> None:
    prompts = [*questions(pair), *(ids for _, ids in pair.rows())]
    requests = [
        ScoreRequest(i, tuple(answered(prompt, tail) for tail in ([50], [51, 52], [51, 53, 9]))) for i, prompt in enumerate(prompts)
    ]
    setup = setup_for(pair, **({"chunked": True, "wanted": LogprobOptions(echo=True)} | more))
    for request, outcome in zip(requests, scored(setup, requests), strict=True):
        for passage, scores in zip(request.passages, outcome.scores, strict=True):
            truth = pair.truth(passage.ids)[passage.positions - 1, passage.ids[passage.positions]]
            np.testing.assert_allclose(scores.logprobs, truth, rtol=0, atol=BOUND)
