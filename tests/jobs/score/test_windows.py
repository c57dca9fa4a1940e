"""Tests the windows of a document: each token is scored once, with enough context; equal to lm-eval's and the HF guide's."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.jobs.score.windows import Window, rolling, strided

SIZES = st.integers(0, 60)
CONTEXTS = st.integers(1, 20)
BOS = st.integers(0, 1)


def fed(window: Window, bos: int) -> int:
    """Ids that are fed: all but the last, and the BOS of a later window."""
    return window.end - 1 - window.start + (bos if window.start else 0)


def context_of(window: Window, bos: int) -> int:
    """Ids before the first that is scored."""
    return window.scored - window.start + (bos if window.start else 0)


def assert_each_once(windows: Iterable[Window], ids: int) -> None:
    assert [i for window in windows for i in range(window.scored, window.end)] == list(range(1, ids))


def test_ten_tokens_in_a_context_of_four() -> None:
    ids = ["p", *range(10)]
    windows = [(ids[w.start : w.end - 1], ids[w.scored : w.end]) for w in rolling(11, 4)]
    assert windows == [(["p", 0, 1, 2], [0, 1, 2, 3]), ([3, 4, 5, 6], [4, 5, 6, 7]), ([5, 6, 7, 8], [8, 9])]


@given(SIZES, CONTEXTS, BOS)
def test_rolling_windows_score_each_token_once_after_one_token_or_a_full_context(ids: int, context: int, bos: int) -> None:
    windows = list(rolling(ids, context, bos))
    assert_each_once(windows, ids)
    for window in windows:
        assert 1 <= fed(window, bos) <= context
        assert context_of(window, bos) >= 1
    for window in windows[1:]:
        assert fed(window, bos) == context  # later windows use the whole context, the last too
    if len(windows) > 2 and context > 1 + bos:
        middle = windows[1:-1]
        assert all(context_of(window, bos) == 1 + bos for window in middle)  # one token of overlap, behind BOS where that returns


@given(SIZES, CONTEXTS, st.integers(1, 20), BOS)
def test_strided_scores_each_token_once_in_steps_of_stride(ids: int, context: int, stride: int, bos: int) -> None:
    stride = min(stride, context)
    windows = list(strided(ids, context, stride, bos))
    assert_each_once(windows, ids)
    for window in windows:
        assert 1 <= fed(window, bos) <= context
        assert context_of(window, bos) >= 1
    for window in windows[1:]:
        assert window.end - window.scored == min(stride, ids - window.scored)
        # The context that the guide gives: what the window holds besides its new tokens.
        assert context_of(window, bos) >= min(max(1, context - stride), window.scored)


@given(SIZES, st.integers(2, 20), st.integers(1, 19))
def test_strided_is_the_guides_loop(ids: int, context: int, stride: int) -> None:
    stride = min(stride, context - 1)
    expected: list[Window] = []
    previous = 0
    for begin in range(0, ids, stride):  # as in transformers' docs, "Perplexity of fixed-length models"
        end = min(begin + context, ids)
        target_length = end - previous
        expected.append(Window(begin, end - target_length, end))
        previous = end
        if end == ids:
            break
    if expected:  # the guide's first target has nothing before it; the loss leaves it out
        expected[0] = Window(0, 1, expected[0].end)
    assert list(strided(ids, context, stride)) == [window for window in expected if window.end > window.scored]


def test_windows_that_share_no_token_see_the_one_before() -> None:
    assert list(strided(9, 4, 4)) == [Window(0, 1, 4), Window(3, 4, 8), Window(7, 8, 9)]


def test_bos_of_a_later_window_takes_the_place_of_an_id() -> None:
    assert list(rolling(11, 4, 1)) == [Window(0, 1, 5), Window(4, 5, 8), Window(7, 8, 11)]
    assert list(strided(11, 6, 3, 1)) == [Window(0, 1, 6), Window(4, 6, 9), Window(7, 9, 11)]


def test_nothing_to_score() -> None:
    for ids in (0, 1):
        assert list(rolling(ids, 4)) == []
        assert list(strided(ids, 4, 2)) == []


@pytest.mark.oracle
@settings(deadline=None)  # the first example imports lm-eval
@given(SIZES, CONTEXTS)
def test_rolling_is_lm_evals(ids: int, context: int) -> None:
    from lm_eval.utils import get_rolling_token_windows

    tokens = list(range(ids))
    expected = list(get_rolling_token_windows(tokens, -1, context, 1))
    whole = [-1, *tokens]
    assert [(whole[w.start : w.end - 1], whole[w.scored : w.end]) for w in rolling(len(whole), context)] == expected
