"""Scoring batches where a picture's tokens see each other both ways: no batch ends within a picture, and each position is read once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.core.requests import Passage, ScoreRequest
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_bulk.runner.scheduler.prefix_tree import MIN_PREFIX, Segment, forest
from mlx_bulk.runner.scheduler.score_batches import segment_batches

from ..support.made_up_pictures import picture, picture_ids
from ..support.tiny_runs import multiple_choice
from .test_prefix_tree import WIDE, all_batches, asked, read_by

TABLE = ImageTable(9)
PICTURES = [picture(TABLE, f"{tokens} tokens", tokens) for tokens in (4, 1, 9, 40)]  # with ids one behind the other
NINE = PICTURES[2]
Parts = list[list[int] | PromptImage]


@st.composite
def _requests(draw: st.DrawFn) -> list[ScoreRequest]:
    """Draws prompts of unlike lengths with pictures at any place, and some answers to each."""
    text = st.lists(st.integers(0, 2), max_size=30)
    found: list[ScoreRequest] = []
    for row in range(draw(st.integers(1, 7))):
        parts: Parts = [draw(text)]
        for _ in range(draw(st.integers(0, 3))):
            parts += [draw(st.sampled_from(PICTURES)), draw(text)]
        prompt = picture_ids([1], *parts, [1])
        answers = draw(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=4), min_size=1, max_size=3))
        whole = [np.array(prompt + answer, np.int32) for answer in answers]
        found.append(ScoreRequest(row, tuple(Passage(ids, np.arange(len(prompt), len(ids), dtype=np.int32)) for ids in whole)))
    return found


def cut(segment: Segment) -> bool:
    """Whether a picture goes on behind a segment, or behind its parents."""
    for ends in (segment.start, len(segment.ids)):
        for read in segment.reads:
            ids = read.passage.ids
            if 0 < ends < len(ids) and ids[ends] >= 1 << 24 and ids[ends] != TABLE.image_of(int(ids[ends])).first:
                return True
    return False


_limits = st.builds(
    Limits,
    rows=st.integers(1, 12),
    tokens=st.integers(1, 2000),
    kv_bytes=st.integers(300, 4000),  # the longest of these alone takes less
    token_bytes=st.just(1.0),
    row_bytes=st.just(1.0),
)


@given(_requests(), _limits)
def test_no_batch_ends_within_a_picture(requests: list[ScoreRequest], limits: Limits) -> None:
    top = forest(requests, limits, shared=True)
    batches = [batch for batch, _ in all_batches(top, limits, equal_lengths=False, whole_pictures=True)]
    assert not [segment for batch in batches for segment in batch if cut(segment)]
    assert sorted(x for batch in batches for segment in batch for x in read_by(segment)) == asked(requests)
    assert all(len({len(segment) for segment in batch}) == 1 for batch in batches if batch[0].children)


@pytest.mark.parametrize(("before", "whole", "lengths"), [(20, True, [20, 20]), (20, False, [25, 25]), (30, True, [25, 25])])
def test_prompts_of_unlike_length_are_cut_before_a_picture(before: int, whole: bool, lengths: list[int]) -> None:
    prompts = [[2] * 25, picture_ids([3] * before, NINE, [4] * 5)]
    top = forest(multiple_choice(prompts, [[[5, 1], [6, 1], [7, 1]]] * 2), WIDE, shared=True)
    (batch,) = segment_batches(top, WIDE, equal_lengths=False, whole_pictures=whole)
    assert [len(segment) for segment in batch] == lengths


def test_a_cut_before_one_picture_goes_before_others_that_it_would_cut() -> None:
    """The shortest ends in the second's picture, which begins in the third's."""
    prompts = [[2] * 32, picture_ids([3] * 26, NINE, [4] * 5), picture_ids([5] * 19, NINE, [6] * 20)]
    top = forest(multiple_choice(prompts, [[[5, 1], [6, 1]]] * 3), WIDE, shared=True)
    (batch,) = segment_batches(top, WIDE, equal_lengths=False, whole_pictures=True)
    assert [len(segment) for segment in batch] == [19] * 3


def test_prompts_whose_pictures_leave_little_before_them_have_batches_of_their_own() -> None:
    prompts = [[2] * 20, picture_ids([3] * (MIN_PREFIX - 1), NINE, [4] * 5)]
    top = forest(multiple_choice(prompts, [[[5, 1], [6, 1]]] * 2), WIDE, shared=True)
    assert [[len(segment) for segment in batch] for batch in segment_batches(top, WIDE, False, whole_pictures=True)] == [[29], [20]]
    assert [[len(segment) for segment in batch] for batch in segment_batches(top, WIDE, False)] == [[20, 20]]


def test_pictures_side_by_side_are_taken_for_one() -> None:
    """Ids that follow each other may be of one picture: a cut between two of them would be right, and is not made."""
    row = Segment(np.array(picture_ids([1], PICTURES[0], PICTURES[1], [2], NINE), np.int32))
    assert [row.uncut(length) for length in (0, 1, 2, 5, 6, 7, 8, 15, 16, 99)] == [0, 1, 1, 1, 6, 7, 7, 7, 16, 16]
