"""The forecast of a run's work matches the counts of the engine and the scorer, call by call."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.progress import Progress
from mlx_bulk.runner.core.requests import Request, Sampling, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.estimate.forecast import Work, decoding_work, pooling_work, scoring_work, separate_tokens
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.pooling_models import WordTable, one_each, pool_windows, pooling_setup_of, texts_of
from ..support.score_calls import ragged_choices
from ..support.tiny import build, prompts_of, random_chain
from ..support.tiny_runs import documents, engine_of, multiple_choice, request, setup_of

NETWORK = build("llama")
SAMPLING = Sampling(temperature=1.0, ignore_eos=True)


def counted(progress: Progress, *names: str) -> dict[str, int]:
    return {name: getattr(progress, name) for name in names}


def generated(setup: Setup, windows: Sequence[list[Request]]) -> dict[str, int]:
    engine, rest = engine_of(setup), iter(windows)
    for _ in engine.run(lambda wait: next(rest, None)):
        pass
    return counted(engine.progress, "prefilled", "padded", "steps", "generated", "slot_steps")


def to_the_end(asked: Request, _: object) -> int:
    return asked.work.sampling.max_tokens


row = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))  # prompt tokens, max_tokens, samples


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(row, min_size=1, max_size=24),
    cut=st.integers(1, 24),
    limits=st.tuples(st.integers(1, 9), st.integers(2, 130)),
    way=st.sampled_from(["padded", "joined", "exact", "static"]),
    kv=st.sampled_from([1e12, 400.0]),
    most=st.sampled_from([1, 5, 16, 40, 10**9]),
)
def test_decoding_work_is_what_the_engine_does(
    rows: list[tuple[int, int, int]], cut: int, limits: tuple[int, int], way: str, kv: float, most: int
) -> None:
    chain = random_chain(64)
    setup = setup_of(
        chain,
        "exact" if way == "exact" else "padded",
        limits[0],
        limits[1],
        LogprobOptions(),
        static=way == "static",
        ragged=way != "joined",
    )
    setup = replace(setup, limits=replace(setup.limits, kv_bytes=kv), prefill_tokens=most)
    requests = [
        request(i, [1 + (i + t) % 60 for t in range(prompt)], replace(SAMPLING, max_tokens=new), range(samples))
        for i, (prompt, new, samples) in enumerate(rows)
    ]
    windows = [part for part in (requests[:cut], requests[cut:]) if part]
    found = decoding_work(windows, setup, to_the_end)
    assert counted_work(found) == generated(setup, windows)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=24),
    cut=st.integers(1, 24),
    limits=st.tuples(st.integers(1, 9), st.integers(2, 200)),
    way=st.sampled_from(["padded", "joined"]),
    kv=st.sampled_from([1e12, 400.0]),
    most=st.sampled_from([1, 5, 16, 40, 10**9]),
)
def test_shared_prefixes_count_as_the_engine_prefills_them(
    rows: list[tuple[int, int, int, int]], cut: int, limits: tuple[int, int], way: str, kv: float, most: int
) -> None:
    setup = setup_of(random_chain(256), way, limits[0], limits[1], LogprobOptions(), shared_prompts=True)
    setup = replace(setup, limits=replace(setup.limits, kv_bytes=kv), prefill_tokens=most)
    starts = [[1] * 40, [1] * 40 + [2] * 40, [3] * 90]
    requests = [
        request(i, starts[start] + [4 + (i + t) % 250 for t in range(tail)], replace(SAMPLING, max_tokens=new), range(samples))
        for i, (start, tail, new, samples) in enumerate(rows)
    ]
    windows = [part for part in (requests[:cut], requests[cut:]) if part]
    assert counted_work(decoding_work(windows, setup, to_the_end)) == generated(setup, windows)


def counted_work(work: Work) -> dict[str, int]:
    return {name: getattr(work, name) for name in ("prefilled", "padded", "steps", "generated", "slot_steps")}


def test_prompts_of_one_and_two_tokens_are_padded_as_by_the_engine():
    requests = [request(i, [1] * (1 + i % 2), replace(SAMPLING, max_tokens=2)) for i in range(4)]
    setup = setup_of(random_chain(8), wanted=LogprobOptions())
    assert counted_work(decoding_work([requests], setup, to_the_end)) == generated(setup, [requests])


def test_completions_that_end_early_make_room_for_others():
    requests = [request(i, [1, 2, 3], replace(SAMPLING, max_tokens=100)) for i in range(8)]
    setup = setup_of(random_chain(8), rows=4)
    work = decoding_work([requests], setup, lambda request, _: 10 if request.row % 2 else 2)
    assert work.generated == 4 * 10 + 4 * 2
    assert work.steps < 30  # one after another, pairs of both kinds would take 4 x 10


def test_the_peak_is_what_the_longest_rows_may_hold_together():
    requests = [request(i, [1] * 10, replace(SAMPLING, max_tokens=30)) for i in range(3)]
    work = decoding_work([requests], setup_of(random_chain(8), rows=4), to_the_end)
    assert (work.rows, work.kv_bytes) == (3, 3 * (40 + 1.0))  # a byte a token, and one a row


QUICK = (
    ("shared", "documents"),
    ("shared", "deep choices"),
    ("not shared", "choices"),
    ("exact", "uneven choices"),
    ("one by one", "documents"),
    ("static", "choices"),
)


@pytest.mark.parametrize(
    ("way", "what"),
    [
        pytest.param(way, what, marks=() if (way, what) in QUICK else pytest.mark.slow)
        for way in ("shared", "not shared", "exact", "one by one", "static")
        for what in ("documents", "choices", "deep choices", "uneven choices")
    ],
)
def test_scoring_work_is_what_the_scorer_does(way: str, what: str):
    found: dict[str, dict[str, Any]] = {
        "shared": {},
        "not shared": {"shared_passages": False},
        "exact": {"right_padded": False, "shared_passages": False},
    }
    found |= {"one by one": {"right_padded": False, "shared_passages": False}, "static": {"static": True}}
    setup = setup_of(NETWORK, "exact" if way == "exact" else "padded", 4, 64, **found[way])
    prompts = prompts_of((40, 40, 33, 25, 64, 20))
    requests: dict[str, list[ScoreRequest]] = {
        "documents": documents(prompts_of((5, 60, 17, 90, 33, 18, 17, 2, 41))),
        "choices": ragged_choices(),
        "deep choices": multiple_choice(prompts, [[[1, 2], [1, 3, 4], [5] * 20, [5] * 20 + [6] * 9, [5] * 20 + [7] * 8]] * 6),
    }
    requests["uneven choices"] = multiple_choice(prompts_of((40, 40, 40)), [[[1] * 9, [2, 2]], [[1, 1], [2] * 9], [[1] * 9, [2] * 3]])
    scorer, windows = Scorer(setup), iter([requests[what]])
    for _ in scorer.run(lambda wait: next(windows, None)):
        pass
    work = scoring_work(requests[what], [setup])
    names = ("prefilled", "padded", "scored")
    assert {name: getattr(work, name) for name in names} == counted(scorer.progress, *names)
    assert separate_tokens(requests[what]) >= work.prefilled


def test_work_of_a_part_of_the_rows_grows_with_them():
    work = Work(calls=2, prefilled=10, padded=20, steps=5, rows=4, kv_bytes=7.0)
    assert work.times(2.5) == Work(calls=5, prefilled=25, padded=50, steps=12, rows=4, kv_bytes=7.0)
    assert work.padding_waste == 0.5
    assert np.isclose(Work().padding_waste, 0)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    limits=st.tuples(st.integers(1, 30), st.integers(1, 300), st.sampled_from([1e12, 70.0])),
    equal=st.booleans(),
    static=st.booleans(),
)
def test_pooling_work_is_what_the_pooler_does(lengths: list[int], limits: tuple[int, int, float], equal: bool, static: bool) -> None:
    rows, tokens, room = limits
    network = WordTable()
    setup = pooling_setup_of(network, rows, tokens, static, room=room, equal_lengths=equal, pair_bytes=0.1)
    requests = one_each(texts_of(lengths))
    progress = pool_windows(setup, requests)[1].progress
    work = pooling_work(requests, setup)
    assert counted(progress, "prefilled", "padded") == {"prefilled": work.prefilled, "padded": work.padded}
    assert work.calls == len(network.calls)
    assert work.kv_bytes == max(setup.limits.kv(*call) for call in network.calls)
    for count, width in network.calls:
        assert count == 1 or (count <= rows and count * width <= tokens and (static or setup.limits.kv(count, width) <= room))
