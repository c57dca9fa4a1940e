"""Tests rows with a shared prefix: tokens, logprobs and echo are those of the row alone; no token is prefilled twice."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated, Outcome
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine import engine as engines
from mlx_bulk.runner.engine import prefill as prefilling
from mlx_bulk.runner.engine import prefix_kv as keeping
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_bulk.runner.scheduler.request_queue import SharedPrefix

from ..support.naive_truth import assert_decode_is_echo, assert_echo_is_naive, assert_greedy_as_alone, assert_same
from ..support.shared_prompts import DOCUMENTS, OTHERS, SYSTEM, TAILS, naive, prompts, requests
from ..support.small_memory import Refuses, Tight, cached
from ..support.tiny import JOINED, PADDED, build, prompts_of
from ..support.tiny_runs import engine_of, request, run, setup_of

QUICK = ("llama", "gemma3_text")  # whole keys, and windows
ALL = LogprobOptions(echo=True, top=3, stats=True)
ONCE = SYSTEM + sum(DOCUMENTS) + 3 * sum(n - 1 for n in TAILS) + sum(n - 1 for n in OTHERS) + 2 * (TAILS[2] - 1)  # tokens to be fed


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> keeping.PrefixKV:
    """The prefixes that the next engine keeps."""
    found = keeping.PrefixKV()
    monkeypatch.setattr(engines, "PrefixKV", lambda: found)
    return found


def with_shared_prefixes(setup: Setup, asked: Sequence[Request]) -> tuple[list[Generated], Engine]:
    """Outcomes by row and sample, and the engine, which counted."""
    engine, windows = engine_of(setup.with_features(shared_prompts=True)), iter([list(asked)])
    outcomes = list(engine.run(lambda wait: next(windows, None)))
    done = [one for one in outcomes if isinstance(one, Generated)]
    assert len(done) == len(outcomes), [one for one in outcomes if not isinstance(one, Generated)]
    return sorted(done, key=lambda one: (one.row, one.index)), engine


@pytest.mark.parametrize("tokens", [40, pytest.param(1024, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *(pytest.param(name, "padded", marks=() if name in QUICK else pytest.mark.slow) for name in PADDED),
        *(pytest.param(name, "joined", marks=pytest.mark.slow) for name in JOINED),
        pytest.param("lfm2", "joined", marks=pytest.mark.slow),
    ],
)
def test_rows_are_as_alone_and_what_they_share_is_fed_once(name: str, way: str, tokens: int):
    network, texts = build(name), prompts()
    asked = requests(texts)
    outcomes, engine = with_shared_prefixes(setup_of(network, way, rows=6, tokens=tokens, wanted=ALL), asked)
    assert_same(run(setup_of(network, way, rows=6, tokens=tokens, wanted=ALL), asked), outcomes)
    assert engine.progress.prefilled == ONCE < naive(asked) / 4
    assert engine.progress.prompt == sum(map(len, texts))
    every = [texts[one.row] for one in outcomes]
    assert_greedy_as_alone(network, every, outcomes)
    assert_echo_is_naive(network, every, outcomes)
    assert_decode_is_echo(network, every, outcomes)


@pytest.mark.parametrize("head", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_echo_is_whole_with_its_figures(head: bool):
    network, asked = build("qwen3"), requests(prompts())
    more: dict[str, Any] = {} if head else {"head": None}
    setup = setup_of(network, rows=6, tokens=1024, wanted=ALL, **more)
    for one, other in zip(run(setup, asked), with_shared_prefixes(setup, asked)[0], strict=True):
        assert one.echo is not None
        assert other.echo is not None
        assert len(other.echo.logprobs) == len(prompts()[one.row]) - 1
        for name in ("top_ids", "ranks"):
            np.testing.assert_array_equal(getattr(one.echo, name), getattr(other.echo, name))
        for name in ("logprobs", "top_logprobs", "entropies"):
            np.testing.assert_allclose(getattr(one.echo, name), getattr(other.echo, name), rtol=0, atol=1e-4)


def test_drawn_samples_are_the_same_with_and_without():
    asked = requests(prompts(), temperature=1.0)
    setup = setup_of(build("llama"), rows=5, tokens=1024, wanted=LogprobOptions())
    assert_same(run(setup, asked), with_shared_prefixes(setup, asked)[0])


def test_equal_prompts_cost_one_prefill():
    (text,) = prompts_of((80,))
    asked = [request(i, text, Sampling(max_tokens=3, temperature=0.0)) for i in range(6)]
    setup = setup_of(build("gemma3_text"), rows=4, tokens=1024, wanted=ALL)
    outcomes, engine = with_shared_prefixes(setup, asked)
    assert engine.progress.prefilled == 79
    assert_same(run(setup, asked), outcomes)


@pytest.mark.parametrize("static", [True, False])
def test_in_deterministic_mode_and_exact_batches_nothing_is_shared(static: bool):
    asked = requests(prompts())
    setup = setup_of(build("llama"), "padded" if static else "exact", static=static, tokens=1024)
    assert with_shared_prefixes(setup, asked)[1].progress.prefilled == naive(asked)


def test_a_model_whose_prompts_go_through_in_one_call_shares_nothing():
    asked = requests(prompts())
    setup = setup_of(build("llama"), chunked=False, tokens=1024)
    assert with_shared_prefixes(setup, asked)[1].progress.prefilled == naive(asked)


def test_only_prefixes_that_rows_still_need_are_kept(monkeypatch: pytest.MonkeyPatch):
    kept: list[int] = []
    keep = keeping.PrefixKV.keep

    def counting(self: keeping.PrefixKV, prefixes: Sequence[SharedPrefix]) -> None:
        keep(self, prefixes)
        kept.append(len(self.kept))

    monkeypatch.setattr(keeping.PrefixKV, "keep", counting)
    _, engine = with_shared_prefixes(setup_of(build("llama"), rows=3, tokens=1024), requests(prompts()))
    assert max(kept) == 2  # the system prompt, and the document of the next row
    assert kept[-1] == 0
    assert engine.progress.prefilled == ONCE


@pytest.mark.slow
def test_caches_and_what_is_kept_stay_within_the_budget(kept: keeping.PrefixKV):
    network, most, seen = build("llama"), 500.0, list[float]()
    asked = [request(one.row, one.prompt.ids.tolist(), one.work.sampling, range(1 + 11 * (one.row % 2))) for one in requests(prompts())]

    class Watching(Tight):
        def __call__(self, tokens: Any, cache: Any) -> Any:
            if tokens.shape[1] == 1:
                seen.append(sum(base.tokens for base in kept.kept.values()) + tokens.shape[0] * (cached(cache) + 1))
            return super().__call__(tokens, cache)

    setup = setup_of(Watching(network, lambda *_: False), rows=16, tokens=1024, head=None)
    outcomes, engine = with_shared_prefixes(replace(setup, limits=Limits(16, 1024, most, 1.0, 0.0)), asked)
    assert_same(run(setup_of(network, rows=16, tokens=1024), asked), outcomes)
    assert 0.9 * most < max(seen) <= most
    assert engine.progress.prefilled < naive(asked) / 3


# ------------------------------------------------------------------------------------------------- begun anew

MOMENTS: dict[str, Refuses] = {
    "prefill": lambda rows, width, cached: width > 1 and rows > 1,
    "decode": lambda rows, width, cached: width == 1 and rows > 3,
    "a long batch": lambda rows, width, cached: rows * cached > 160 and rows > 1,
    "anything": lambda rows, width, cached: rows > 1,
}


@cache
def with_room(temperature: float) -> list[Generated]:
    return run(setup_of(build("llama"), rows=8, tokens=1024), requests(prompts(), temperature))


@pytest.mark.parametrize("moment", [pytest.param(name, marks=() if name == "decode" else pytest.mark.slow) for name in MOMENTS])
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_results_are_the_same_wherever_memory_runs_out(moment: str, temperature: float):
    network, asked = Tight(build("llama"), MOMENTS[moment]), requests(prompts(), temperature)
    outcomes, engine = with_shared_prefixes(setup_of(network, rows=8, tokens=1024, head=None), asked)
    assert network.refused
    assert len(network.refused) <= 6
    assert network.held == 0
    assert_same(with_room(temperature), outcomes)
    assert engine.progress.prompt == sum(map(len, prompts()))


def test_kept_prefixes_are_freed_before_the_next_try(kept: keeping.PrefixKV):
    left: list[int] = []
    network: Tight

    def refuses(rows: int, width: int, cached: int) -> bool:
        if network.refused and len(left) < 1:
            left.append(len(kept.kept))
        return rows > 1 and width == 1 and len(network.refused) < 1

    network = Tight(build("llama"), refuses)
    with_shared_prefixes(setup_of(network, rows=4, tokens=1024, head=None), requests(prompts()))
    assert left == [0]


@pytest.mark.slow
def test_where_a_prefix_and_one_row_do_not_fit_together_the_rest_of_the_window_shares_nothing(
    caplog: pytest.LogCaptureFixture, kept: keeping.PrefixKV
):
    """In the first of two windows nothing fits beside a prefix that is kept."""
    asked = requests(prompts())
    held: list[bool] = []

    def refuses(rows: int, width: int, cached: int) -> bool:
        held.append(bool(kept.kept))
        return held[-1] and window == 1

    network = Tight(build("llama"), refuses)
    engine = engine_of(setup_of(network, rows=8, tokens=1024, head=None, shared_prompts=True))
    window = 0

    def next_window(wait: bool) -> list[Request] | None:
        nonlocal window
        window += wait  # the second one when the first is done
        return asked if wait and window <= 2 else None if window > 2 else []

    found = list[Outcome](engine.run(next_window))
    done = sorted((one for one in found if isinstance(one, Generated)), key=lambda one: (one.row, one.index))
    assert len(done) == len(found)
    assert held.count(True) > len(network.refused)  # in the second one
    said = [record.getMessage() for record in caplog.records if "without sharing what they begin with" in record.getMessage()]
    assert len(said) == 1
    assert_same([one for one in with_room(0.0) for _ in range(2)], done)


def test_other_weights_leave_nothing_of_the_old_ones(kept: keeping.PrefixKV):
    setup = setup_of(build("llama"), shared_prompts=True)
    engine = engine_of(setup)
    prefix = SharedPrefix(np.arange(70, dtype=np.int32))
    kept.kept[prefix] = prefilling.compute_prefix(setup, prefix.ids, None)
    engine.renew()
    assert kept.kept == {}


# ------------------------------------------------------------------------------------------------------ power


def test_a_prefix_that_is_off_by_one_token_is_seen(monkeypatch: pytest.MonkeyPatch):
    network, asked = build("llama"), requests(prompts())
    setup = setup_of(network, rows=6, tokens=1024, wanted=ALL)
    truth, right = run(setup, asked), prefilling.prefix_by_calls

    def shifted(setup: Setup, ids: Any, above: Any) -> Any:
        return right(setup, np.roll(ids, 1), None)

    monkeypatch.setattr(keeping, "prefix_by_calls", shifted)
    with pytest.raises(AssertionError):
        assert_same(truth, with_shared_prefixes(setup, asked)[0])


def test_an_echo_that_takes_another_rows_first_token_is_found(monkeypatch: pytest.MonkeyPatch):
    network, asked = build("llama"), requests(prompts())
    setup = setup_of(network, rows=6, tokens=1024, wanted=ALL)
    truth, right = run(setup, asked), prefilling.compute_prefix

    def earlier(setup: Setup, ids: Any, above: Any) -> Any:
        base = right(setup, ids, above)
        yield from ()
        return replace(base, last=right(setup, ids[:-1], None).last)

    monkeypatch.setattr(keeping, "prefix_by_calls", earlier)
    with pytest.raises(AssertionError):
        assert_same(truth, with_shared_prefixes(setup, asked)[0])
