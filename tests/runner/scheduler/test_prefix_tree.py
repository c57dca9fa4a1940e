"""Tests trees of shared prefixes and their batches: each position is read once, and limits hold."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.requests import Passage, ScoreRequest
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_bulk.runner.scheduler.prefix_tree import CALL_TOKENS, MIN_PREFIX, SAVING_SHARE, Segment, bucket_length, forest, passage_input
from mlx_bulk.runner.scheduler.score_batches import PORTION_BATCHES, child_turns, fixed_batches, scoring_limits, segment_batches

from ..support.tiny import Ids, prompts_of
from ..support.tiny_runs import documents, multiple_choice, passage

WIDE = Limits(rows=32, tokens=1 << 20, kv_bytes=1e12, token_bytes=1.0, row_bytes=1.0)


@st.composite
def _requests(draw: st.DrawFn) -> list[ScoreRequest]:
    """Draws passages over few ids, so that prefixes, duplicates and inputs that begin others are common."""
    starts = draw(st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=4))
    found: list[ScoreRequest] = []
    for row in range(draw(st.integers(1, 8))):
        passages: list[Passage] = []
        for _ in range(draw(st.integers(0, 4))):
            ids = [*draw(st.sampled_from(starts)), *draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))]
            positions = sorted(draw(st.sets(st.integers(1, len(ids) - 1))))
            passages.append(Passage(np.array(ids, np.int32), np.array(positions, np.int32)))
        found.append(ScoreRequest(row, tuple(passages)))
    return found


_limits = st.builds(
    Limits,
    rows=st.integers(1, 9),
    tokens=st.integers(1, 200),
    kv_bytes=st.integers(50, 2000),  # the longest of these alone takes 47
    token_bytes=st.just(1.0),
    row_bytes=st.just(1.0),
)


def branches(segments: list[Segment], above: tuple[Segment, ...] = ()) -> Iterator[tuple[Segment, ...]]:
    """Yields each path from a root to a leaf."""
    for segment in segments:
        way = (*above, segment)
        yield from branches(segment.children, way) if segment.children else [way]


def all_batches(
    segments: list[Segment], limits: Limits, equal_lengths: bool, held: float = 0.0, whole_pictures: bool = False
) -> Iterator[tuple[list[Segment], float]]:
    """Yields all batches in the scorer's order, each with the bytes held beside it."""
    for batch in segment_batches(segments, limits, equal_lengths, held, whole_pictures=whole_pictures):
        yield batch, held
        if len(batch) == 1:
            below = held + limits.kv(1, len(batch[0].ids))
            yield from all_batches(batch[0].children, limits, equal_lengths, below, whole_pictures)
        else:
            yield from ((turn, held) for turn in child_turns([parent.children for parent in batch])[1])


def read_by(segment: Segment) -> Iterator[tuple[int, int, int]]:
    """Yields (request, passage, position) of all that is read at a segment."""
    for part in segment.reads:
        positions = part.passage.positions
        here = positions[(positions > segment.start) & (positions <= len(segment.ids))]
        yield from ((*owner, int(p)) for owner in part.owners for p in here)


def asked(requests: list[ScoreRequest]) -> list[tuple[int, int, int]]:
    """Lists (request, passage, position) of all positions to score."""
    return sorted((i, j, int(p)) for i, r in enumerate(requests) for j, part in enumerate(r.passages) for p in part.positions)


@given(_requests(), _limits, st.booleans())
def test_every_position_is_read_once_whatever_is_shared_and_batched(requests: list[ScoreRequest], limits: Limits, shared: bool):
    top = forest(requests, limits, shared)
    read = [x for batch, _ in all_batches(top, limits, equal_lengths=False) for segment in batch for x in read_by(segment)]
    assert sorted(read) == asked(requests)


@given(_requests(), _limits)
def test_segments_from_the_root_are_the_input_of_their_passages(requests: list[ScoreRequest], limits: Limits):
    for way in branches(forest(requests, limits, shared=True)):
        assert [segment.start for segment in way] == [0, *(len(segment.ids) for segment in way[:-1])]
        assert all(len(segment) for segment in way)
        for segment in way:
            np.testing.assert_array_equal(segment.ids, way[-1].ids[: len(segment.ids)])
            for part in segment.reads:
                n = min(len(segment.ids), len(passage_input(part.passage)))
                np.testing.assert_array_equal(part.passage.ids[:n], segment.ids[:n])


@given(_requests(), _limits, st.booleans())
def test_batches_keep_to_the_limits(requests: list[ScoreRequest], limits: Limits, equal_lengths: bool):
    top = forest(requests, limits, shared=not equal_lengths)
    for batch, held in all_batches(top, limits, equal_lengths):
        width, longest = max(len(segment) for segment in batch), max(segment.longest for segment in batch)
        assert len(batch) <= limits.rows
        assert len(batch) * width <= limits.tokens or len(batch) == 1 or all(segment.start for segment in batch)
        assert held + limits.kv(len(batch), longest) <= limits.kv_bytes
        if equal_lengths or batch[0].children:
            assert {len(segment) for segment in batch} == {width}
        assert len({bool(segment.children) for segment in batch}) == 1
        assert len({segment.start for segment in batch}) == 1


@given(_requests(), st.integers(1, 5), st.sampled_from([bucket_length, int]))
def test_the_shapes_of_fixed_batches_depend_on_lengths_alone(requests: list[ScoreRequest], rows: int, width: Callable[[int], int]):
    found = fixed_batches(requests, rows, width)
    assert [len(batch) for batch in found] == [rows] * len(found)
    for segment, wide in ((segment, len(batch[0])) for batch in found for segment in batch):
        assert len(segment) == wide == len(segment.ids)
        for part in segment.reads:
            feed = passage_input(part.passage)
            assert (wide, wide - segment.pads) == (width(len(feed)), len(feed))
            np.testing.assert_array_equal(segment.ids[: len(feed)], feed)
    assert sorted(x for batch in found for segment in batch for x in read_by(segment)) == asked(requests)


def test_fixed_batches_keep_the_order_and_are_filled_up():
    texts = prompts_of((40, 80, 38, 40, 40))
    found = fixed_batches(documents([*texts, texts[0]]), 4, bucket_length)
    owners = [[[part.owners for part in segment.reads] for segment in batch] for batch in found]
    assert owners == [[[[(1, 0)]], [], [], []], [[[(0, 0)]], [[(2, 0)]], [[(3, 0)]], [[(4, 0)]]], [[[(5, 0)]], [], [], []]]
    assert [[len(segment) for segment in batch] for batch in found] == [[80] * 4, [40] * 4, [40] * 4]
    assert [segment.pads for segment in found[1]] == [1, 3, 1, 1]


@given(st.integers(1, 1 << 20))
def test_a_bucket_is_at_most_an_eighth_longer_than_its_input(length: int):
    wide = bucket_length(length)
    assert max(8, length) <= wide
    assert wide == 8 or 8 * (wide - length) <= wide
    assert any(wide == m << k for m in range(8, 16) for k in range(20))


def test_choices_of_one_prompt_share_it_and_prompts_share_their_examples():
    shots, *questions = prompts_of((60, 30, 25, 32))
    choices = [prompts_of((4, 3, 5), seed=i) for i in range(3)]
    top = forest(multiple_choice([shots + q for q in questions], choices), WIDE, shared=True)
    assert [len(segment) for segment in top] == [60]
    contexts = top[0].children
    assert sorted(len(segment) for segment in contexts) == [25, 30, 32]
    assert all(sorted(len(child) for child in context.children) == [2, 3, 4] for context in contexts)  # the last id is not fed


def test_single_token_choices_are_read_at_one_place():
    prompt = prompts_of((30,))[0]
    top = forest(multiple_choice([prompt], [[[1], [2], [3]]]), WIDE, shared=True)
    assert [(len(segment), len(segment.reads), segment.height) for segment in top] == [(30, 3, 0)]


def test_an_input_that_is_another_ones_prefix_has_no_segment():
    long = prompts_of((40,))[0]
    top = forest(documents([long, long[:10], long[:2]]), WIDE, shared=True)
    assert [len(segment) for segment in top] == [39]
    assert len(forest(documents([long, long[:10], long[:2]]), WIDE, shared=False)) == 3


@pytest.mark.parametrize("shared", [True, False])
def test_the_same_passage_twice_is_computed_and_read_once(shared: bool):
    text = prompts_of((20,))[0]
    (only,) = forest(documents([text, text]), WIDE, shared)
    assert [part.owners for part in only.reads] == [[(0, 0), (1, 0)]]


def test_prefixes_that_save_little_are_not_shared():
    start, *ends = prompts_of((MIN_PREFIX, 200, 200, 200))
    assert len(forest(documents([start + end for end in ends]), WIDE, shared=True)) == 3  # 16 of 216
    start, *ends = prompts_of((MIN_PREFIX - 1, 2, 2, 2))
    assert len(forest(documents([start + end for end in ends]), WIDE, shared=True)) == 3  # most of them, but few


def test_groups_inside_a_group_that_saves_little_are_found():
    start, *rest = prompts_of((20, 200, 200, *[10] * 20))
    subjects, questions = rest[:2], rest[2:]
    top = forest(documents([start + subjects[i % 2] + q for i, q in enumerate(questions)]), WIDE, shared=True)
    assert [(len(segment), len(segment.children)) for segment in top] == [(220, 10), (220, 10)]


def test_a_prefix_is_not_kept_without_room_beside_a_row():
    shots, *questions = prompts_of((60, 20, 20))
    requests = documents([shots + q for q in questions])
    assert len(forest(requests, replace(WIDE, kv_bytes=61 + 80), shared=True)) == 1
    assert len(forest(requests, replace(WIDE, kv_bytes=61 + 79), shared=True)) == 2


def test_prompts_of_similar_length_share_a_batch_up_to_the_shortest_of_them():
    prompts = prompts_of((32, 30, 400, 31))
    top = forest(multiple_choice(prompts, [[[1, 2], [3, 4], [5, 6]]] * 4), WIDE, shared=True)
    found = segment_batches(top, WIDE, equal_lengths=False)
    assert [[len(segment) for segment in batch] for batch in found] == [[400], [30, 30, 30]]
    assert [len(child) for parent in found[1] for child in parent.children] == [3, 3, 3, 2, 2, 2, 1, 1, 1]


def test_prompts_get_batches_of_their_own_where_sharing_would_compute_more_twice():
    def together(longer: int) -> bool:
        prompts = prompts_of((30 + longer, 30))
        top = forest(multiple_choice(prompts, [[[1, 2], [3, 4], [5, 6]]] * 2), WIDE, shared=True)
        return len(segment_batches(top, WIDE, equal_lengths=False)) == 1

    # The longer prompt's last tokens are computed for each of its three choices, twice too often; separate batches are four calls more.
    most = (60 // SAVING_SHARE + 4 * CALL_TOKENS) // 2
    assert together(most)
    assert not together(most + 1)


def test_a_batch_of_leaves_has_no_more_pads_than_its_limit():
    requests = [ScoreRequest(row, (passage(text),)) for row, text in enumerate(prompts_of((100, 90, 70, 69, 68, 30)))]
    top = forest(requests, WIDE, shared=False)

    def lengths(pads: float) -> list[list[int]]:
        return [[len(leaf) for leaf in batch] for batch in segment_batches(top, replace(WIDE, pads=pads), equal_lengths=False)]

    assert lengths(math.inf) == [[99, 89, 69, 68, 67, 29]]
    assert lengths(40) == [[99, 89, 69], [68, 67, 29]]
    assert lengths(39) == [[99, 89], [69, 68, 67], [29]]
    assert lengths(0) == [[99], [89], [69], [68], [67], [29]]


def test_documents_in_windows_are_finished_all_along():
    """A stop loses the unfinished rows: at no time may they be more than a portion and the rows at its ends."""
    windows, small = 3, replace(WIDE, tokens=40)
    texts = prompts_of([20] * (windows * 200))
    requests = [
        ScoreRequest(row, tuple(passage(text[: 20 - 7 * last]) for last, text in enumerate(texts[windows * row : windows * (row + 1)])))
        for row in range(200)
    ]
    fed_of, whole = [0] * 200, [sum(len(passage_input(p)) for p in request.passages) for request in requests]
    most = 0
    for batch in segment_batches(forest(requests, small, shared=True), small, equal_lengths=False):
        for segment in batch:
            fed_of[segment.reads[0].owners[0][0]] += len(segment)
        most = max(most, sum(part for part, all_of_it in zip(fed_of, whole, strict=True) if part < all_of_it))
    assert fed_of == whole
    assert most <= PORTION_BATCHES * small.tokens + 2 * max(whole)
    assert PORTION_BATCHES * small.tokens < sum(whole) / 4  # else the bound would say nothing


def test_turns_of_children_drop_rows_at_the_end_only():
    prompts = prompts_of((30, 30, 30))
    choices = [[[1], [2]], [[3] * 9, [4] * 5, [5] * 7], [[6], [7], [8] * 2]]
    (parents,) = segment_batches(
        forest(multiple_choice(prompts, [[[1, *end, 1] for end in ends] for ends in choices]), WIDE, shared=True), WIDE, False
    )
    children = [parent.children for parent in parents]
    order, turns = child_turns(children)
    counts = [len(children[row]) for row in order]
    assert counts == sorted(counts, reverse=True)
    assert [len(turn) for turn in turns] == [sum(n > number for n in counts) for number in range(max(counts))]
    for turn in turns:
        assert all(any(child is own for own in children[order[row]]) for row, child in enumerate(turn))
    assert sorted(id(child) for turn in turns for child in turn) == sorted(id(child) for own in children for child in own)


def test_rows_that_can_not_be_padded_are_scored_alone_unless_equal_lengths_were_tried():
    assert scoring_limits(WIDE, right_padded=True) == WIDE
    assert scoring_limits(replace(WIDE, equal_lengths=True), right_padded=False) == replace(WIDE, equal_lengths=True)
    assert scoring_limits(WIDE, right_padded=False).rows == 1


def test_a_prompt_with_many_completions_has_a_batch_of_its_own():
    prompts = prompts_of((30, 30))
    top = forest(multiple_choice(prompts, [[[i, 1] for i in range(20)], [[2, 1], [3, 1]]]), WIDE, shared=True)
    assert [len(batch) for batch in segment_batches(top, WIDE, equal_lengths=False)] == [1, 1]


def test_an_order_by_bytes_is_one_by_ids():
    """Ids above 255 do not sort by their first byte."""
    start: Ids = list(range(300, 320))
    top = forest(documents([[*start, 256, 1], [*start, 1, 1], [*start, 511, 1]]), WIDE, shared=True)
    assert [int(child.ids[-1]) for child in reversed(top[0].children)] == [1, 256, 511]


def test_nothing_to_score_is_nothing_to_compute():
    empty = Passage(np.array([1, 2], np.int32), np.zeros(0, np.int32))
    requests = [ScoreRequest(0, (empty,)), ScoreRequest(1, ())]
    assert forest(requests, WIDE, shared=True) == []
    assert fixed_batches(requests, 4, bucket_length) == []
    assert segment_batches([], WIDE, equal_lengths=False) == []


def test_a_chain_as_long_as_its_texts_are_many_needs_no_stack():
    texts = [[7] * i + [8, 8] for i in range(1, sys.getrecursionlimit() + 100)]
    requests = documents(texts)
    top = forest(requests, WIDE, shared=True)
    assert sorted(x for batch, _ in all_batches(top, WIDE, equal_lengths=False) for segment in batch for x in read_by(segment)) == asked(
        requests
    )


def test_a_passages_input_ends_before_the_last_token_scored():
    assert passage_input(passage([1, 2, 3, 4], first=2)).tolist() == [1, 2, 3]
