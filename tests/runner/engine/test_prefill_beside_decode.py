"""Tests that rows decode while a long prompt is prefilled: how long they wait at most, and that no outcome changes."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers import kv_cache
from mlx_bulk.runner.scheduler.limits import Limits

from ..support import shared_prompts
from ..support.naive_truth import assert_greedy_as_alone, assert_same
from ..support.small_memory import Tight, cached
from ..support.tiny import JOINED, PADDED, build, prompts_of
from ..support.tiny_runs import engine_of, greedy, request, run, setup_of

LONG, BUDGET = (150, 101, 90, 40, 40, 7, 1), 16
ALL = LogprobOptions(echo=True, top=3, stats=True)


def asked(temperature: float = 0.0) -> list[Request]:
    """Rows that end at unlike steps, some with several samples, so that long prompts enter while others decode."""
    texts = prompts_of((*LONG, *LONG), seed=5)
    sampling = Sampling(temperature=temperature, ignore_eos=True)
    return [request(i, ids, replace(sampling, max_tokens=3 + (5 * i) % 11), range(1 + i % 3)) for i, ids in enumerate(texts)]


def beside(network: Any, way: str = "padded", **more: Any) -> Setup:
    given: dict[str, Any] = {"rows": 4, "tokens": 64, "wanted": ALL, "prefill_tokens": BUDGET, **more}
    return setup_of(network, way, **given)


def drained(setup: Setup) -> Setup:
    """The same, where rows that decode wait for whole groups."""
    return replace(setup, prefill_tokens=10**9)


def windows(*given: Sequence[Request]) -> Any:
    left = iter([*map(list, given), None])
    return lambda wait: next(left, None)


def noted(prefill_tokens: int, **more: Any) -> list[tuple[int, int, int]]:
    """The calls of the model while two rows decode and two long prompts arrive; without those before the two."""
    network = Tight(build("llama"), lambda *_: False)
    setup = beside(network, head=None, wanted=LogprobOptions(), prefill_tokens=prefill_tokens, **more)
    short, long = prompts_of((3, 5)), prompts_of((100, 90), seed=1)
    engine = engine_of(setup)
    outcomes = list(engine.run(windows(greedy(short, 60), [request(2 + i, ids, Sampling(3, 0.0)) for i, ids in enumerate(long)])))
    assert sorted(one.row for one in outcomes) == [0, 1, 2, 3]
    return network.calls[1:]


def waits(calls: list[tuple[int, int, int]]) -> list[int]:
    """Padded tokens that are prefilled between two decode steps, where there are any."""
    found = [0]
    for rows, width, _ in calls:
        if width == 1:
            found.append(0)
        else:
            found[-1] += rows * width
    return [tokens for tokens in found if tokens]


def test_rows_that_decode_wait_for_no_more_tokens_than_the_setting_says():
    assert max(waits(noted(BUDGET))) == BUDGET
    assert sum(waits(noted(BUDGET))) == 99 + 89
    assert waits(noted(10**9)) == [99, 89]  # of 64 tokens at most a call, one prompt after the other


def test_small_calls_share_a_wait():
    """Two calls of 64 and of 35 tokens, then one of 64."""
    assert waits(noted(100)) == [99, 89]
    assert waits(noted(64)) == [64, 35, 64, 25]


def test_a_prompt_that_needs_one_call_gets_it():
    assert waits(noted(BUDGET, chunked=False)) == [99, 89]


def test_where_no_row_decodes_calls_are_as_large_as_ever():
    network = Tight(build("llama"), lambda *_: False)
    run(beside(network, head=None, wanted=LogprobOptions()), greedy(prompts_of((100,)), 3))
    assert [width for _, width, _ in network.calls] == [64, 35, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *(pytest.param(name, "padded", marks=() if name == "llama" else pytest.mark.slow) for name in PADDED),
        *(pytest.param(name, "joined", marks=pytest.mark.slow) for name in JOINED),
    ],
)
def test_outcomes_are_those_of_each_row_alone(name: str, way: str):
    network = build(name)
    rows = asked()
    found = run(beside(network, way), rows)
    assert_same(run(drained(beside(network, way)), rows), found)
    assert_greedy_as_alone(network, [rows[one.row].prompt.ids.tolist() for one in found], found)


@pytest.mark.parametrize("ahead", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_drawn_samples_and_figures_are_those_of_drained_prefills(monkeypatch: pytest.MonkeyPatch, ahead: bool):
    for module in (draw, logprobs) if ahead else ():
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)
    setup = beside(build("llama"), ahead=ahead)
    assert_same(run(drained(setup), asked(0.9)), run(setup, asked(0.9)))


def counts(setup: Setup, requests: Sequence[Request]) -> tuple[list[Generated], dict[str, int]]:
    engine = engine_of(setup)
    found = [one for one in engine.run(windows(requests)) if isinstance(one, Generated)]
    names = ("prompt", "prefilled", "generated")
    return sorted(found, key=lambda one: (one.row, one.index)), {name: getattr(engine.progress, name) for name in names}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("tokens", [BUDGET, *(pytest.param(tokens, marks=pytest.mark.slow) for tokens in (2, 50))])
def test_shared_prefixes_are_computed_once_and_between_steps(ahead: bool, tokens: int):
    requests = shared_prompts.requests(shared_prompts.prompts())
    setup = beside(build("llama"), rows=6, shared_prompts=True, prefill_tokens=tokens, ahead=ahead)
    (found, done), (truth, expected) = counts(setup, requests), counts(drained(setup), requests)
    assert_same(truth, found)
    assert done == expected


def test_shared_prefixes_do_not_keep_others_waiting():
    """A row decodes all the time."""
    network, requests = Tight(build("llama"), lambda *_: False), shared_prompts.requests(shared_prompts.prompts())
    setup = beside(network, rows=6, shared_prompts=True, head=None, wanted=LogprobOptions())
    steady = request(99, [1, 2, 3], Sampling(200, 0.0))
    outcomes = list(engine_of(setup).run(windows([steady], requests)))
    assert len(outcomes) == 1 + sum(len(one.samples) for one in requests)
    assert outcomes[-1].row == 99
    assert max(waits(network.calls[1:])) <= BUDGET + 6  # the last call of a prefill may have a column more


@pytest.mark.slow
def test_a_static_batch_prefills_as_ever():
    setup = beside(build("llama"), static=True)
    for one, other in zip(run(drained(setup), asked(0.9)), run(setup, asked(0.9)), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.scores.logprobs, other.scores.logprobs)


def test_caches_of_a_half_done_prefill_stay_within_the_budget_beside_those_that_decode():
    """Groups of one row, as each prompt is longer than a prefill; a row decodes all the time."""
    most, lengths, half_done = 500.0, (90, 80, 75, 70, 66), [0]
    seen: list[int] = []

    class Watching(Tight):
        def __call__(self, tokens: Any, cache: Any) -> Any:
            rows, width = tokens.shape
            if width > 1:
                half_done[0] = cached(cache) + width
            else:
                seen.append(rows * (cached(cache) + 1) + (0 if half_done[0] + 1 in lengths else half_done[0]))
            return super().__call__(tokens, cache)

    setup = beside(Watching(build("llama"), lambda *_: False), rows=16, head=None, wanted=LogprobOptions())
    setup = replace(setup, limits=Limits(16, 64, most, 1.0, 0.0))
    rows = [request(i, ids, Sampling(25 + i % 5, 0.0, ignore_eos=True)) for i, ids in enumerate(prompts_of(lengths * 3))]
    outcomes = list(engine_of(setup).run(windows([request(99, [1, 2], Sampling(115, 0.0, ignore_eos=True))], rows)))
    assert len(outcomes) == 16
    assert 0.75 * most < max(seen) <= most


# ------------------------------------------------------------------------------------------------- begun anew


@pytest.mark.parametrize(
    ("number", "moment", "shared"),
    [
        pytest.param(*case, marks=() if case == (2, "decode", True) else pytest.mark.slow)
        for case in product((2, 5), ("prefill", "decode"), (False, True))
    ],
)
def test_memory_that_runs_out_in_the_middle_of_a_prefill_loses_no_row_and_repeats_none(moment: str, number: int, shared: bool):
    """The ``number``-th call of a kind, counted between the calls of a prefill beside rows that decode."""
    calls: list[int] = []
    seen = 0

    def refuses(rows: int, width: int, cached: int) -> bool:
        nonlocal seen
        calls.append(width)
        half_done = len(calls) > 2 and 1 in calls[:-1] and max(calls[-3:]) > 1 and min(calls[-3:]) == 1
        seen += half_done and (width == 1) == (moment == "decode")
        return half_done and seen == number and (width == 1) == (moment == "decode")

    network = Tight(build("llama"), refuses)
    requests = shared_prompts.requests(shared_prompts.prompts(), 0.8) if shared else asked(0.8)
    more: dict[str, Any] = {"wanted": LogprobOptions(), "shared_prompts": shared}
    found, done = counts(beside(network, head=None, **more), requests)
    assert len(network.refused) == 1
    assert network.held == 0
    assert_same(run(drained(beside(build("llama"), **more)), requests), found)
    assert done["prompt"] == sum(len(one.prompt.ids) for one in requests)
    assert done["generated"] == sum(len(one.ids) for one in found)


def test_caches_of_a_half_done_prefill_are_freed_before_the_next_try(monkeypatch: pytest.MonkeyPatch):
    """A decode step fails, and all begin anew: the half-done caches are gone when the next call begins."""
    made: list[weakref.ref[Any]] = []
    make = kv_cache.make_caches

    def making(*arguments: Any, **more: Any) -> Any:
        found = make(*arguments, **more)
        made.append(weakref.ref(found[0]))
        return found

    for module in ("prefill", "prefix_kv"):
        monkeypatch.setattr(f"mlx_bulk.runner.engine.{module}.make_caches", making)
    left: list[int] = []
    network: Tight

    def refuses(rows: int, width: int, cached: int) -> bool:
        if network.refused and not left:
            left.append(sum(one() is not None for one in made[:-1]))
        widths = [call[1] for call in network.calls[-3:]]
        return not network.refused and widths == [1, BUDGET, 1]

    network = Tight(build("llama"), refuses)
    setup = beside(network, head=None, wanted=LogprobOptions())
    assert len(run(setup, asked())) == sum(len(one.samples) for one in asked())
    assert left == [0]


# ------------------------------------------------------------------------------------- stopped, and other weights


def test_a_stop_is_heard_between_the_calls_of_a_prefill():
    network = Tight(build("llama"), lambda *_: False)
    engine = engine_of(beside(network, head=None, wanted=LogprobOptions()))
    assert list(engine.run(windows(greedy(prompts_of((400,)), 3)), lambda: len(network.calls) >= 2)) == []
    assert len(network.calls) == 2


def test_other_weights_are_refused_while_a_prefill_is_half_done():
    engine, refused = engine_of(beside(build("llama"))), list[int]()

    def between_turns() -> bool:
        if engine._entering is not None:  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(AssertionError, match="they would see two policies"):
                engine.renew()
            refused.append(engine.progress.steps)
        return False

    assert len(list(engine.run(windows(asked()), between_turns))) == sum(len(one.samples) for one in asked())
    assert len(refused) > 5


def test_rows_of_the_last_window_are_prefilled_to_their_end():
    """Nobody waits for input then, and what a policy began it ends."""
    engine = engine_of(beside(build("llama")))
    found = list(engine.run(windows(asked())))
    assert len(found) == sum(len(one.samples) for one in asked())
    engine.renew()
