"""Tests the scorer as a GPU has it: calls that keep nothing, of few shapes, sent one ahead, whose logits are read as they come."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import backend, logprobs
from mlx_bulk.runner.core.outcomes import Scored
from mlx_bulk.runner.layers import kv_cache
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.scoring import whole_calls
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.naive_truth import assert_scores_are_naive
from ..support.score_calls import TEXTS, ragged_choices, setup
from ..support.small_memory import MESSAGE, Tight
from ..support.tiny import VOCABULARY, build, prompts_of
from ..support.tiny_runs import documents, scored, scored_with, setup_of


@pytest.fixture(autouse=True)
def _generic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU computes by mlx's operations, as Metal and CUDA do."""
    for module in (backend, logprobs, kv_cache):
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)


def few(of: Any, tokens: int = 960) -> Any:
    """The setup with calls of few shapes."""
    return replace(of, limits=replace(of.limits, tokens=tokens, rows=100, few_shapes=True))


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "gemma3_text"])
@pytest.mark.parametrize("texts", [TEXTS, prompts_of((70, 3, 65, 64, 2, 129, 40))])
def test_scores_are_those_of_a_full_forward(name: str, texts: list[list[int]]):
    asked = documents(texts)
    for logit_rows in (7, 1000):
        of = setup(name, logit_bytes=logit_rows * 4 * VOCABULARY, right_padded=True)
        assert_scores_are_naive(build(name), asked, scored(few(of), asked))


def test_shapes_are_few_and_rows_of_pads_change_nothing(monkeypatch: pytest.MonkeyPatch):
    shapes: list[tuple[int, int]] = []
    send = whole_calls._send  # pyright: ignore[reportPrivateUsage]

    def sending(*given: Any) -> Any:
        sent = send(*given)
        shapes.append(sent.tokens.shape)
        return sent

    monkeypatch.setattr(whole_calls, "_send", sending)
    asked = documents(prompts_of((40, 50, 60, 61, 62, 63, 64, 130, 140, 200)))
    assert_scores_are_naive(build("llama"), asked, scored(few(setup("llama", right_padded=True)), asked))
    assert shapes == [(3, 320), (7, 64)]  # 960 tokens are three rows of 320, or fifteen of 64


def test_a_call_is_sent_before_the_scores_before_it_are_out(monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []
    send = whole_calls._send  # pyright: ignore[reportPrivateUsage]

    def sending(*given: Any) -> Any:
        events.append("sent")
        return send(*given)

    monkeypatch.setattr(whole_calls, "_send", sending)
    work = Scorer(setup("llama", rows=1, right_padded=True))
    windows = iter([documents(TEXTS[:3])])
    for outcome in work.run(lambda wait: next(windows, None)):
        assert isinstance(outcome, Scored)
        events.append("out")
    assert events == ["sent", "sent", "out", "sent", "out", "out"]


def test_a_stop_leaves_the_rest():
    work = Scorer(setup("llama", rows=1, right_padded=True))
    windows, seen = iter([documents(TEXTS)]), list[int]()
    for outcome in work.run(lambda wait: next(windows, None), lambda: bool(seen)):
        seen.append(outcome.row)
    assert len(seen) <= 2


@pytest.mark.parametrize("refuses", [lambda rows, width, cached: rows > 2, lambda rows, width, cached: rows * width > 60])
def test_scores_are_the_same_where_a_call_that_is_sent_ahead_finds_no_memory(refuses: Callable[[int, int, int], bool]):
    network, asked = Tight(build("llama"), refuses), documents(TEXTS)
    of = setup_of(network.network, rows=4, tokens=256, head=_Body(network), right_padded=True)
    assert_scores_are_naive(build("llama"), asked, [o for o in scored_with(Scorer(of), asked) if isinstance(o, Scored)])
    assert network.refused
    assert network.held == 0


def test_a_batch_whose_scores_are_unread_is_not_blamed_where_the_next_call_finds_no_memory(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    send = whole_calls._send  # pyright: ignore[reportPrivateUsage]

    def sending(*given: Any) -> Any:
        calls.append(1)
        if len(calls) % 2 == 0:  # each call that is sent ahead
            raise RuntimeError(MESSAGE)
        return send(*given)

    monkeypatch.setattr(whole_calls, "_send", sending)
    of, asked = setup("llama", rows=1, tokens=64, right_padded=True), documents(prompts_of((30, 40, 50, 60)))
    work = Scorer(of)
    outcomes = [o for o in scored_with(work, asked) if isinstance(o, Scored)]
    assert_scores_are_naive(build("llama"), asked, outcomes)
    assert len(calls) == 7  # four batches, three of which were to be sent ahead


def test_where_pads_change_logprobs_no_call_is_padded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(whole_calls, "_send", lambda *_: pytest.fail("a call with pads"))
    asked = documents(TEXTS)
    assert_scores_are_naive(build("llama"), asked, scored(few(setup("llama", right_padded=False)), asked))


class _Body(Head):
    """A head whose body is behind a device with little memory."""

    def __init__(self, network: Tight):
        super().__init__(network.network)
        self.tight = network

    def states(self, tokens: mx.array, caches: Any) -> mx.array:
        """Asks the device first."""
        self.tight.ask(tokens, caches)
        return super().states(tokens, caches)


def test_choices_that_share_a_prompt_keep_their_caches():
    asked = ragged_choices()
    assert_scores_are_naive(build("llama"), asked, scored(few(setup("llama", right_padded=True, shared_passages=True)), asked))


def test_greedy_flags_and_tempered_logprobs_come_along():
    of = setup("llama", right_padded=True)
    of = replace(of, wanted=replace(of.wanted, greedy=True, temperature=1.0))
    for outcome in scored(few(of), documents(TEXTS)):
        (scores,) = outcome.scores
        assert scores.greedy is not None
        assert scores.tempered is not None
        np.testing.assert_array_equal(scores.tempered, scores.logprobs)
