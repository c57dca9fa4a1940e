"""Tests a lack of device memory during a run: batches shrink, rows start again, and results do not change."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from mlx_bulk.kernels import backend
from mlx_bulk.runner.core.errors import OutOfRoom, is_out_of_memory
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine import engine as engines
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.engine.oom_backoff import GIVEN_UP, LEAST_TOKENS, MemoryBackoff
from mlx_bulk.runner.engine.slots import Slots
from mlx_bulk.runner.models.device_memory import kv_bytes
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_lm.models.cache import BatchKVCache

from ..support.naive_truth import assert_same
from ..support.small_memory import Refused, Refuses, Tight
from ..support.tiny import build, prompts_of
from ..support.tiny_runs import engine_of, greedy, request, run, setup_of

PROMPTS = prompts_of((5, 30, 1, 17, 17, 9, 2, 40, 3, 12, 1, 2))
DRAWN = [request(i, p, Sampling(max_tokens=4 + i, temperature=1.2), seeds=(7 * i, 7 * i + 1, 7 * i + 2)) for i, p in enumerate(PROMPTS[:7])]
# samples that join others, and prompts with more samples than the batch has rows
JOINING = [*DRAWN, *(request(7 + i, p, Sampling(max_tokens=3, temperature=1.2), range(12)) for i, p in enumerate(PROMPTS[7:9]))]
ASKED = {"greedy": greedy(PROMPTS), "samples": DRAWN, "joining": JOINING}


@cache
def with_room(name: str) -> list[Generated]:
    """What a device with all the memory in the world gives for ASKED."""
    return run(setup_of(build("llama"), rows=8, tokens=256), ASKED[name])


def outcomes_in(refuses: Refuses, asked: Sequence[Request], **more: Any) -> tuple[list[Outcome], Engine, Tight]:
    """Returns the outcomes of a device with little memory, in order; the engine; and the model, which noted its calls."""
    network = Tight(build("llama"), refuses)
    options: dict[str, Any] = {"rows": 8, "tokens": 256, "head": None, **more}
    engine, windows = engine_of(setup_of(network, **options)), iter([list(asked)])
    return list(engine.run(lambda wait: next(windows, None))), engine, network


def assert_as_with_room(asked: Sequence[Request], outcomes: Sequence[Outcome], truth: Sequence[Generated] | None = None) -> None:
    """Each sample has come out once, as from a device with all the memory in the world."""
    truth = run(setup_of(build("llama"), rows=8, tokens=256), list(asked)) if truth is None else truth
    done = [o for o in outcomes if isinstance(o, Generated)]
    assert len(done) == len(outcomes) == len({(o.row, o.index) for o in done}) == sum(len(r.samples) for r in asked)
    assert_same(truth, sorted(done, key=lambda o: (o.row, o.index)))


MOMENTS: dict[str, Refuses] = {
    "prefill": lambda rows, width, cached: width > 1 and rows > 1,
    "decode": lambda rows, width, cached: width == 1 and rows > 3,
    "a join": lambda rows, width, cached: width == 1 and rows > 5,
    "a long batch": lambda rows, width, cached: rows * cached > 60 and rows > 1,
    "anything": lambda rows, width, cached: rows > 1,
}


@pytest.mark.parametrize("name", [pytest.param("greedy", marks=pytest.mark.slow), "samples"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_results_are_the_same_wherever_memory_runs_out(moment: str, name: str):
    asked = ASKED[name]
    outcomes, engine, network = outcomes_in(MOMENTS[moment], asked)
    assert network.refused
    assert len(network.refused) <= 6  # limits are halved: it does not run into the wall again and again
    assert network.held == 0
    assert_as_with_room(asked, outcomes, with_room(name))
    progress = engine.progress
    assert progress.prompt == sum(len(r.prompt.ids) for r in asked)
    assert progress.generated == sum(len(o.ids) for o in outcomes if isinstance(o, Generated))


JOINS: dict[str, tuple[Any, str]] = {
    "prompts are forked": (engines, "fork_caches"),
    "caches are picked": (engines, "select"),
    "a batch is joined": (BatchKVCache, "extend"),
    "rows enter": (Slots, "enter"),
}


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("moment", JOINS)
def test_no_sample_is_lost_where_memory_runs_out_between_two_calls(moment: str, number: int, monkeypatch: pytest.MonkeyPatch):
    truth = with_room("joining")
    place, name = JOINS[moment]
    refused = Refused(getattr(place, name), number)
    monkeypatch.setattr(place, name, refused)
    outcomes, engine, _ = outcomes_in(lambda *_: False, JOINING)
    assert refused.calls >= number
    assert_as_with_room(JOINING, outcomes, truth)
    assert engine.progress.prompt == sum(len(r.prompt.ids) for r in JOINING)


@pytest.mark.parametrize("name", ["mamba", "llama"])
def test_batches_of_one_length_shrink_too(name: str):
    asked = greedy(prompts_of((6, 6, 6, 6, 9, 9, 9)))
    network = Tight(build(name), lambda rows, width, cached: rows > 2)
    found = run(setup_of(network, "exact", rows=8, head=None), asked)
    assert network.refused
    assert_same(run(setup_of(build(name), "exact", rows=8), asked), found)


def test_a_prefill_that_does_not_fit_leaves_the_batch_that_decodes_alone():
    """Prompts of 40 tokens fill the batch; the short ones that join it later do not fit beside it."""
    refused: list[int] = []

    def refuses(rows: int, width: int, cached: int) -> bool:
        if 1 < width < 39 and rows > 1 and not refused:
            refused.append(rows)
            return True
        return False

    asked = greedy(prompts_of((40, 40, 40, 40, 9, 9, 9)), max_tokens=6)
    outcomes, engine, _ = outcomes_in(refuses, asked, rows=4)
    assert refused
    assert_as_with_room(asked, outcomes)
    assert engine.progress.prefilled == 4 * 39 + 3 * 8  # none of the long ones again


def test_samples_that_are_done_stay_done():
    """Of each row's two samples one may stop at its first tokens; memory runs out once, when the others have ten."""
    refused: list[int] = []

    def refuses(rows: int, width: int, cached: int) -> bool:
        if width == 1 and cached == 19 and not refused:
            refused.append(rows)
            return True
        return False

    asked = [request(i, p, Sampling(max_tokens=20, temperature=1.5), seeds=(i, 50 + i)) for i, p in enumerate(prompts_of((10, 10, 10)))]
    eos = range(20)
    network = Tight(build("llama"), refuses)
    engine, windows = engine_of(setup_of(network, rows=6, head=None), eos), iter([asked])
    outcomes = list(engine.run(lambda wait: next(windows, None)))
    assert 2 <= refused[0] <= 5
    done = [o for o in outcomes if isinstance(o, Generated)]
    assert_same(run(setup_of(build("llama"), rows=6), asked, eos), sorted(done, key=lambda o: (o.row, o.index)))
    assert engine.progress.prompt == 30


def test_a_row_that_does_not_fit_alone_is_given_up_and_the_others_are_done():
    asked = [request(i, p, Sampling(max_tokens=6, temperature=0.0), seeds=(0, 1)) for i, p in enumerate(PROMPTS)]
    outcomes, _, _ = outcomes_in(lambda rows, width, cached: cached > 38, asked)
    failed = [o for o in outcomes if isinstance(o, Failure)]
    assert [(o.row, o.sample, o.stage, o.error) for o in failed] == [(7, 0, "generate", "OutOfMemory"), (7, 1, "generate", "OutOfMemory")]
    assert failed[0].message.startswith(
        "out of device memory with this row alone: 40 prompt tokens and 0 generated of up to 6 ([metal::malloc]"
    )
    assert failed[0].message.endswith("shorten the prompt or lower sampling.max_tokens")
    assert_as_with_room([r for r in asked if r.row != 7], [o for o in outcomes if isinstance(o, Generated)])


def test_a_row_that_grows_beyond_the_memory_alone_says_how_far_it_came():
    asked = [request(i, p, Sampling(max_tokens=30, temperature=0.0)) for i, p in enumerate(prompts_of((5, 20)))]
    outcomes, _, _ = outcomes_in(lambda rows, width, cached: cached > 38, asked)
    assert [type(o) for o in sorted(outcomes, key=lambda o: o.row)] == [Generated, Failure]
    (failed,) = [o for o in outcomes if isinstance(o, Failure)]
    assert "20 prompt tokens and 19 generated of up to 30" in failed.message


def test_a_long_prompt_that_does_not_fit_alone_is_tried_in_smaller_calls():
    asked = greedy(prompts_of((400, 30, 300)), max_tokens=3)
    outcomes, _, network = outcomes_in(lambda rows, width, cached: rows * width > 150, asked, tokens=1024)
    assert_as_with_room(asked, outcomes)
    assert max(rows * width for rows, width, _ in network.calls if rows * width <= 150) > LEAST_TOKENS


def test_one_line_says_what_ran_out_and_what_holds_from_now_on(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        outcomes_in(lambda rows, width, cached: width == 1 and rows > 4, greedy(PROMPTS))
    assert [r.getMessage() for r in caplog.records] == [
        "out of device memory while decoding 6 rows ([metal::malloc] Attempting to allocate 123 bytes which is greater than the maximum "
        "allowed buffer size.): from now on at most 3 rows at once, 128 tokens in a call"
    ]


def test_deterministic_batches_stay_as_they_are():
    with pytest.raises(OutOfRoom, match=r"while decoding 8 rows \(.*\); what was finished is safe. batch.deterministic can not"):
        outcomes_in(lambda rows, width, cached: width == 1 and rows > 4, greedy(PROMPTS), static=True)


def test_when_row_after_row_does_not_fit_it_is_not_the_rows():
    asked = greedy(prompts_of([9] * (GIVEN_UP + 5)))
    with pytest.raises(OutOfRoom, match="16 rows one after the other did not fit even alone; what was finished is safe"):
        outcomes_in(lambda rows, width, cached: True, asked)
    some = [replace(r, prompt=replace(r.prompt, ids=r.prompt.ids[: 9 - r.row % 3])) for r in asked]
    outcomes, _, _ = outcomes_in(lambda rows, width, cached: width > 6, some, rows=1)
    assert sum(isinstance(o, Failure) for o in outcomes) < GIVEN_UP


@pytest.mark.parametrize(
    "message",
    [
        "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size of 3 bytes.",
        "[metal::malloc] Resource limit (499000) exceeded.",
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "cudaMallocAsync(&data, size, stream) failed: out of memory",
        "[malloc_or_wait] Unable to allocate 77 bytes.",
    ],
)
def test_errors_of_every_device_that_mean_too_little_memory(message: str):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(ValueError(message))


def test_another_error_is_not_taken_for_a_shortage():
    class Broken(Tight):
        def __call__(self, tokens: object, cache: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise RuntimeError("[broadcast_shapes] Shapes (1,2) and (3,4) cannot be broadcast.")

    engine, windows = engine_of(setup_of(Broken(build("llama"), lambda *_: False), head=None)), iter([greedy(PROMPTS)])
    with pytest.raises(RuntimeError, match="broadcast_shapes"):
        list(engine.run(lambda wait: next(windows, None)))


def test_limits_are_halves_of_what_did_not_fit():
    room = MemoryBackoff(Limits(rows=32, tokens=4096, kv_bytes=1e12, token_bytes=10.0, row_bytes=0.0))
    room.halve(9, 100, "decoding", "x")
    assert room.limits == Limits(5, 2048, 4500.0, 10.0, 0.0)
    for _ in range(9):
        room.halve(1, 1000, "decoding", "x")
    assert (room.limits.rows, room.limits.tokens) == (1, LEAST_TOKENS)
    small = MemoryBackoff(Limits(2, 7, 1e12, 1.0, 1.0))
    small.halve(2, 5, "decoding", "x")
    assert small.limits.tokens == 7  # what was asked for is less than the least


def test_smaller_calls_for_one_row_that_never_fits_are_not_kept():
    room = MemoryBackoff(Limits(4, 256, 1e12, 1.0, 1.0))
    assert [room.halve_calls(5, "prefilling", "x") for _ in range(3)] == [True, True, False]
    assert room.limits.tokens == 256
    assert room.halve_calls(6, "prefilling", "x")
    assert room.halve_calls(7, "prefilling", "x")
    assert (room.halve_calls(7, "prefilling", "x"), room.limits.tokens) == (False, 128)  # 6 has found its size


def test_features_of_pictures_that_leave_no_room_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "memory_bytes", lambda: 10_000_000_000)
    assert kv_bytes(0.8, 1_000_000_000, 1_000_000, 2_000_000_000) == 4_999_000_000
    with pytest.raises(OutOfRoom, match=r"batch\.image_memory: 9\.0 GB for features .* weights \(1\.0 GB\).*lower batch"):
        kv_bytes(0.8, 1_000_000_000, 1_000_000, 9_000_000_000)
    with pytest.raises(OutOfRoom, match=r"does not hold the weights \(9\.0 GB\)"):
        kv_bytes(0.8, 9_000_000_000, 1_000_000, 1_000_000_000)
