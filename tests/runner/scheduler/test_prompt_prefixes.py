"""Tests shared prefixes of prompts, as properties: each request comes once, prefixes are right and pay, and the KV budget holds."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.scheduler.limits import Limits, Load
from mlx_bulk.runner.scheduler.prefix_tree import CALL_TOKENS, MIN_PREFIX, SAVING_SHARE
from mlx_bulk.runner.scheduler.prompt_prefixes import prefilled_ids, share_prefixes
from mlx_bulk.runner.scheduler.request_queue import RequestQueue, SharedPrefix, longest_first

from ..support import shared_prompts
from ..support.tiny_runs import request

WIDE = Limits(64, 1 << 30, 1e12, 1.0, 1.0)


@st.composite
def windows(draw: st.DrawFn) -> list[Request]:
    """Draws prompts that begin with one of a few texts. These texts share a prefix too, and some prompts come twice."""
    root = list(range(draw(st.integers(0, 60))))
    branches = [root + [100 + i] * draw(st.integers(0, 50)) for i in range(3)]
    shapes = st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(200, 203), st.integers(1, 9), st.integers(1, 3))
    drawn = draw(st.lists(shapes, max_size=24))
    return [
        request(i, branches[of] + [token] * tail, Sampling(max_tokens=most), range(samples))
        for i, (of, tail, token, most, samples) in enumerate(drawn)
    ]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    return Limits(draw(st.integers(1, 9)), draw(st.integers(1, 200)), draw(st.sampled_from([150.0, 300.0, 900.0, 1e9])), 1.0, 2.0)


@given(windows(), limits())
def test_rows_begin_with_their_shared_prefixes_which_pay(asked: list[Request], of: Limits):
    order, prefixes = share_prefixes(asked, of)
    assert sorted(r.row for r in order) == [r.row for r in asked]
    rows_of: dict[SharedPrefix, list[Request]] = {}
    for one in order:
        if (prefix := prefixes.get(one.place)) is None:
            continue
        chain = list(prefix.chain)
        assert one.prompt.ids[: len(prefix.ids)].tolist() == prefix.ids.tolist()
        assert len(prefix.ids) <= len(prefilled_ids(one))
        assert sum(of.kv(1, len(part.ids)) for part in chain) + of.kv(1, one.reach) <= of.kv_bytes
        for part in chain:
            rows_of.setdefault(part, []).append(one)
    for prefix, rows in rows_of.items():
        start = len(prefix.ids) - prefix.own_tokens
        assert prefix.own_tokens >= MIN_PREFIX
        assert prefix.own_tokens * (len(rows) - 1) >= max(CALL_TOKENS, sum(len(prefilled_ids(one)) - start for one in rows) / SAVING_SHARE)
        places = [order.index(one) for one in rows]
        assert max(places) - min(places) == len(rows) - 1  # they follow each other
    assert share_prefixes(asked[::-1], of)[0] == order  # the order of the input does not enter


@given(windows(), limits())
def test_prefixes_and_the_rows_of_each_are_taken_longest_first(asked: list[Request], of: Limits):
    order, prefixes = share_prefixes(asked, of)

    def path(one: Request) -> list[SharedPrefix]:
        return list(prefixes[one.place].chain)[::-1] if one.place in prefixes else []

    def assert_longest_first(rows: list[Request], level: int) -> None:
        parts = [list(part) for _, part in groupby(rows, lambda one: path(one)[level] if len(path(one)) > level else one)]
        longest = [max(len(one.prompt.ids) for one in part) for part in parts]
        assert longest == sorted(longest, reverse=True)
        for part in parts:
            if len(path(part[0])) > level:
                assert_longest_first(part, level + 1)

    assert_longest_first(order, 0)


def taken(asked: list[Request], of: Limits, load: Load) -> Iterator[tuple[list[Request], RequestQueue, Load]]:
    """Yields groups until the queue is empty, each with the load beside it: first ``load``, then none."""
    rest = iter([asked])
    queue = RequestQueue(lambda wait: next(rest, None), share_prefixes)
    while (found := queue.take(of, load)) or load.rows:
        if found:
            yield found, queue, load
        load = Load()


@given(windows(), limits(), st.builds(Load, rows=st.integers(0, 5), longest=st.integers(0, 60)))
def test_each_request_is_taken_once_and_prefixes_count_in_the_budget(asked: list[Request], of: Limits, load: Load):
    kept: set[SharedPrefix] = set()
    seen: list[int] = []
    for found, queue, beside in taken(asked, of, load):
        seen += [one.row for one in found]
        prefixes = kept | {part for one in found if (prefix := queue.prefix_of(one)) for part in prefix.chain}
        rows = beside.rows + sum(min(len(one.work.samples), of.rows) for one in found)
        longest = max(beside.longest, *(one.reach for one in found))
        held = sum(of.kv(1, len(prefix.ids)) for prefix in prefixes)
        alone = len(found) == 1 and not beside.rows  # then it is taken even where its samples must wait for each other
        assert alone or held + of.kv(rows, longest) <= of.kv_bytes
        assert held + of.kv(1, max(one.reach for one in found)) <= of.kv_bytes or not prefixes
        new = sum(prefix.own_tokens for prefix in prefixes - kept)
        own = [len(one.prompt.ids) - len(prefix.ids) for one in found if (prefix := queue.prefix_of(one))]
        assert len(found) == 1 or new + sum(own) <= of.tokens
        kept = set(queue.kept_prefixes)
        assert kept <= prefixes
        assert queue.limits_left(of).kv_bytes == of.kv_bytes - sum(of.kv(1, len(prefix.ids)) for prefix in kept)
    assert sorted(seen) == [one.row for one in asked]
    assert not kept


def test_a_group_holds_rows_of_several_prefixes_so_that_no_slot_stays_empty():
    documents = [[i] * 70 for i in range(8)]
    asked = [request(3 * i + k, [*text, 100 + k, 7], Sampling(max_tokens=4)) for i, text in enumerate(documents) for k in range(3)]
    rest = iter([asked])
    queue = RequestQueue(lambda wait: next(rest, None), share_prefixes)
    found = queue.take(replace(WIDE, rows=10), Load())
    assert len(found) == 10
    assert len({queue.prefix_of(one) for one in found}) == 4
    assert [len(prefix.ids) for prefix in queue.kept_prefixes] == [71 - 1]  # of the fourth, of which two rows wait


def test_a_prompt_that_comes_again_is_prefilled_once():
    order, prefixes = share_prefixes([request(i, list(range(40)), Sampling()) for i in range(3)], WIDE)
    assert {len(prefixes[one.place].ids) for one in order} == {39}
    assert len(set(prefixes.values())) == 1


def test_nothing_is_shared_where_it_saves_less_than_a_call_or_has_no_room():
    pair = [request(i, [*range(CALL_TOKENS - 1), 100 + i, 7], Sampling(max_tokens=5)) for i in range(2)]
    assert share_prefixes(pair, WIDE)[1] == {}
    pair = [request(i, [*range(CALL_TOKENS), 100 + i, 7], Sampling(max_tokens=5)) for i in range(2)]
    assert len(share_prefixes(pair, WIDE)[1]) == 2
    need = WIDE.kv(1, CALL_TOKENS) + WIDE.kv(1, CALL_TOKENS + 7)
    assert len(share_prefixes(pair, replace(WIDE, kv_bytes=need))[1]) == 2
    assert share_prefixes(pair, replace(WIDE, kv_bytes=need - 1)) == (longest_first(pair), {})


def test_requests_that_are_put_back_start_again_and_can_share_nothing_until_the_next_window():
    asked = shared_prompts.requests(shared_prompts.prompts())
    rest = iter([asked, asked])
    queue = RequestQueue(lambda wait: next(rest, None), share_prefixes)
    first = queue.take(replace(WIDE, rows=3), Load())
    assert queue.shares_memory(first[0])
    queue.put_back(first)
    assert queue.kept_prefixes == []
    assert [one.row for one in queue.take(replace(WIDE, rows=3), Load())] == [one.row for one in first]
    queue.put_back(first, unshared=True)
    left = queue.take(WIDE, Load())
    assert [one.row for one in left] == [one.row for one in longest_first(asked)]
    assert not any(queue.prefix_of(one) for one in left)
    assert any(queue.prefix_of(one) for one in queue.take(WIDE, Load()))


def test_each_request_of_a_row_has_its_own_shared_prefix():
    first, second = [1] * 70, [2] * 70
    sampling = Sampling(max_tokens=4)
    asked = [
        request(0, [*first, 100, 7], sampling),
        request(0, [*second, 101, 7], sampling, range(2)).without({0}),
        *(request(1 + i, [*text, 102 + i, 7], sampling) for i, text in enumerate([first, second, first, second])),
    ]
    _, prefixes = share_prefixes(asked, WIDE)
    assert [int(prefixes[one.place].ids[0]) for one in asked] == [1, 2, 1, 2, 1, 2]
