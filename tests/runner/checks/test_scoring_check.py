"""Tests that each shortcut of scoring is used only where it is right, and that scores stay right without it."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_bulk.runner.checks.scoring_check import Shortcuts, confirm_shortcuts, find_shortcuts
from mlx_bulk.runner.core.requests import ScoreRequest
from mlx_bulk.runner.layers.lm_head import Head

from ..support.naive_truth import assert_scores_are_naive
from ..support.tiny import CONFIGS, EXACT, VOCABULARY, Network, build, fresh, prompts_of
from ..support.tiny_runs import documents, multiple_choice, scored, setup_of

QUICK = ("llama", "gemma3_text", "mixtral", "mamba2")  # a model of each kind of cache, and one with experts


def found_for(network: Network, way: str = "padded") -> Shortcuts:
    of = setup_of(network, way, rows=8)
    return find_shortcuts(network, VOCABULARY, of.limits, of.features.padded)


def asked() -> list[ScoreRequest]:
    prompt = prompts_of((40,))[0]
    choices = multiple_choice([prompt + p for p in prompts_of((20, 23), seed=1)], [prompts_of((3, 5), seed=2)] * 2)
    return choices + [ScoreRequest(r.row + 2, r.passages) for r in documents(prompts_of((30, 7)))]


class Around(nn.Module):
    """A model around another one, for a fault in between."""

    def __init__(self, network: Network):
        super().__init__()
        self.model, self.layers = network, network.layers


class HeadReadsTokens(Around):
    """A network whose head reads the tokens again."""

    def __init__(self, network: Network):
        super().__init__(network.model)
        self.lm_head = network.lm_head

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.lm_head(self.model(tokens, cache)) * (1 + tokens[..., None] % 3)


class BodyMakesLogits(Around):
    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.model(tokens, cache=cache)


class SeesLater(Around):
    """Lets a little of each token of a call into all of them."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits = self.model(tokens, cache=cache)
        return logits + logits.mean(axis=1, keepdims=True)


class SeesALittle(Around):
    """``SeesLater``, weighted by ``share``."""

    def __init__(self, network: Network, share: float):
        super().__init__(network)
        self.share = share

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits = self.model(tokens, cache=cache)
        return logits + (self.share * logits.mean(axis=1, keepdims=True)).astype(logits.dtype)


class ForgetsBetweenCalls(Around):
    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.model(tokens)


class OneRowOnTop(Around):
    """Takes several rows only with empty caches."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        if tokens.shape[0] > 1 and cache is not None and cache[0].offset:
            raise ValueError("one row please\nsecond line")
        return self.model(tokens, cache=cache)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS])
def test_all_shortcuts_are_right_for_families_that_mlx_lm_computes_right(name: str):
    found = found_for(build(name), "exact" if name in EXACT else "padded")
    assert (found.head, found.right_padded, found.shared_passages, found.reasons) == (True, True, True, ())


@pytest.mark.parametrize(
    ("fault", "head", "right_padded", "shared", "reason"),
    [
        (HeadReadsTokens, False, True, True, "head apart: logprobs change by"),
        (BodyMakesLogits, False, True, True, "head apart: the body of BodyMakesLogits makes the logits itself"),
        (SeesLater, False, False, False, "pads on the right: logprobs change by"),
        (ForgetsBetweenCalls, False, True, False, "chunks: logprobs change by"),
        (OneRowOnTop, False, True, False, "shared prefixes: one row please"),
    ],
)
def test_a_shortcut_that_is_wrong_is_not_taken(fault: type[Around], head: bool, right_padded: bool, shared: bool, reason: str):
    found = found_for(fault(build("llama")))
    assert (found.head, found.right_padded, found.shared_passages) == (head, right_padded, shared)
    assert any(said.startswith(reason) for said in found.reasons), found.reasons


@pytest.mark.parametrize(
    ("share", "dtype"),
    [
        pytest.param(3e-4, mx.float32, marks=pytest.mark.slow),
        (1e-4, mx.float32),
        (0.1, mx.bfloat16),
        pytest.param(0.1, mx.float16, marks=pytest.mark.slow),
    ],
)
def test_a_pad_that_changes_logprobs_by_more_than_rounding_is_no_shortcut(share: float, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CONFIGS, "llama", CONFIGS["llama"] | {"num_hidden_layers": 4})  # the mean of its logits is what pads change
    clean = _as("llama", dtype)
    assert found_for(clean).right_padded
    found = found_for(SeesALittle(clean, share))
    assert not found.right_padded
    assert not found.shared_passages


def _as(name: str, dtype: mx.Dtype) -> Network:
    """A model of its own, in another precision."""
    network = fresh(name)
    network.set_dtype(dtype)
    return network


@pytest.mark.parametrize("fault", [HeadReadsTokens, BodyMakesLogits, ForgetsBetweenCalls, OneRowOnTop])
def test_without_the_shortcuts_that_are_wrong_scores_are_right(fault: type[Around]):
    network = fault(build("llama"))
    found = found_for(network)
    of = setup_of(
        network,
        "exact",
        tokens=4096,
        head=Head(network) if found.head else None,
        right_padded=found.right_padded,
        shared_passages=found.shared_passages,
    )
    assert_scores_are_naive(network, asked(), scored(of, asked()))


def confirmed_for(network: Network, shown: Shortcuts) -> Shortcuts:
    of = setup_of(network, rows=8)
    return confirm_shortcuts(network, VOCABULARY, of.limits, of.features.padded, shown, 1e-4)


ALL = Shortcuts(True, True, True, True)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "lfm2"])
@pytest.mark.parametrize("shown", [ALL, Shortcuts(False, True, False, False, ("said before",)), Shortcuts(True, False, False, True)])
def test_a_verdict_of_a_twin_is_confirmed_on_the_weights(name: str, shown: Shortcuts):
    assert confirmed_for(build(name), shown) == shown


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (HeadReadsTokens, Shortcuts(False, True, True, True)),
        (SeesLater, Shortcuts(False, False, False, False)),
        (OneRowOnTop, Shortcuts(False, True, False, True)),
    ],
)
def test_a_verdict_of_a_twin_is_dropped_where_the_weights_differ(fault: type[Around], expected: Shortcuts):
    found = confirmed_for(fault(build("llama")), ALL)
    assert replace(found, reasons=()) == expected
    assert found.reasons == found_for(fault(build("llama"))).reasons


def test_a_way_that_no_twin_has_shown_is_not_taken():
    found = confirmed_for(HeadReadsTokens(build("llama")), Shortcuts(True, True, False, True, ("shared prefixes: said before",)))
    assert (found.head, found.right_padded, found.shared_passages) == (False, True, False)
    assert found.reasons[0] == "shared prefixes: said before"


def test_the_faults_show_where_the_shortcuts_are_taken():
    of = setup_of(SeesLater(build("llama")), tokens=4096, head=None)
    with pytest.raises(AssertionError):
        assert_scores_are_naive(of.model, asked(), scored(of, asked()))


def test_rows_that_run_alone_share_what_they_can():
    found = found_for(build("llama"), "alone")
    assert (found.right_padded, found.shared_passages) == (True, True)
