"""Tests the groups of a prefill, as properties: each request comes once, longest first, within the limits."""

from collections import deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.scheduler.limits import Limits, Load
from mlx_bulk.runner.scheduler.request_queue import RequestQueue, longest_first, next_group

from ..support.tiny_runs import request


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    return Limits(
        rows=draw(st.integers(1, 9)),
        tokens=draw(st.integers(1, 120)),
        kv_bytes=draw(st.sampled_from([50.0, 400.0, 1e9])),
        token_bytes=draw(st.sampled_from([0.0, 1.0, 2.5])),
        row_bytes=draw(st.sampled_from([0.0, 7.0])),
        equal_lengths=draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 12)), max_size=25))
    return [request(i, [0] * length, Sampling(max_tokens=more), range(n)) for i, (length, more, n) in enumerate(shapes)]


loads = st.builds(Load, rows=st.integers(0, 9), longest=st.integers(0, 60))


def fits(taken: list[Request], of: Limits, load: Load) -> bool:
    """Checks the limits independently: rows, KV bytes, padded tokens, one length."""
    rows = load.rows + sum(min(len(r.work.samples), of.rows) for r in taken)
    longest = max([load.longest, *(request.reach for request in taken)])
    lengths = [len(r.prompt.ids) for r in taken]
    within_kv = rows * (longest * of.token_bytes + of.row_bytes) <= of.kv_bytes
    within_tokens = len(taken) == 1 or len(taken) * max(lengths) <= of.tokens
    return rows <= of.rows and within_kv and within_tokens and (not of.equal_lengths or len(set(lengths)) == 1)


@given(requests(), limits(), loads)
def test_a_group_is_the_longest_beginning_that_fits(asked: list[Request], of: Limits, load: Load):
    waiting = deque(longest_first(asked))
    before = list(waiting)
    taken = next_group(waiting, of, load)
    assert taken + list(waiting) == before
    alone = len(taken) == 1 and load.rows == 0  # a row that nothing precedes is taken even where it is too large
    assert not taken or alone or fits(taken, of, load)
    if load.rows == 0 and before:
        assert taken
    if waiting:
        assert not fits([*taken, waiting[0]], of, load)


@given(requests(), limits())
def test_every_request_is_taken_once_longest_first(asked: list[Request], of: Limits):
    windows = iter([asked[:10], asked[10:]])
    queue = RequestQueue(lambda wait: next(windows, None))
    taken = [r for _ in range(len(asked) + 1) for r in queue.take(of, Load())]
    assert taken == longest_first(asked[:10]) + longest_first(asked[10:])
    assert [r.row for r in longest_first(taken)] == sorted(range(len(asked)), key=lambda i: (-len(asked[i].prompt.ids), i))


@given(requests(), limits(), st.randoms(use_true_random=False))
def test_groups_depend_on_nothing_but_requests_and_limits(asked: list[Request], of: Limits, random: object):
    shuffled = list(asked)
    random.shuffle(shuffled)  # pyright: ignore[reportAttributeAccessIssue]
    first, second = deque(longest_first(asked)), deque(longest_first(shuffled))
    while first:
        assert next_group(first, of, Load()) == next_group(second, of, Load())
    assert not second


def test_the_queue_waits_for_input_only_when_idle():
    asked: list[bool] = []
    windows: list[list[Request] | None] = [[], [request(0, [1], Sampling())], None]

    def next_window(wait: bool) -> list[Request] | None:
        asked.append(wait)
        return windows.pop(0)

    queue, of = RequestQueue(next_window), Limits(4, 100, 1e9, 1.0, 1.0)
    assert queue.take(of, Load(2, 10)) == []
    assert [r.row for r in queue.take(of, Load())] == [0]
    assert queue.take(of, Load(1, 10)) == []
    assert queue.take(of, Load()) == []  # it has ended, and is not asked again
    assert asked == [False, True, False]


@given(requests(), limits(), st.data())
def test_requests_that_are_put_back_wait_in_their_order(asked: list[Request], of: Limits, data: st.DataObject):
    windows = iter([asked])
    queue = RequestQueue(lambda wait: next(windows, None))
    queue.put_back(data.draw(st.permutations(queue.take(of, Load()))))
    taken = [r for _ in range(len(asked) + 1) for r in queue.take(of, Load())]
    assert taken == longest_first(asked)


def test_a_row_too_large_for_the_budget_waits_until_it_is_alone():
    of = Limits(4, 100, kv_bytes=100.0, token_bytes=1.0, row_bytes=0.0)
    big = request(0, [0] * 90, Sampling(max_tokens=90))
    assert next_group(deque([big]), of, Load(1, 5)) == []
    assert next_group(deque([big]), of, Load()) == [big]


def test_kv_counts_buffers_as_wide_as_the_longest_row():
    of = Limits(4, 100, 1e9, token_bytes=10.0, row_bytes=3.0)
    assert of.kv(3, 20) == 3 * (20 * 10 + 3)
    assert replace(of, row_bytes=0.0).kv(0, 20) == 0
