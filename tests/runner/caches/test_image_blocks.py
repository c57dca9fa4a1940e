"""Tests masks of pictures whose tokens see each other both ways against a plain specification, on mlx-lm's caches, and where calls end."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.caches.image_blocks import ImageBlocks, attend_in_blocks, require_whole, seen_ahead, uncut
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_lm.models.cache import KVCache, RotatingKVCache
from numpy.typing import NDArray

from ..support.picture_truth import specified_mask

TABLE = ImageTable(7)
SMALL, LARGE = (TABLE.register(str(n), n, (1, 1, n), dict) for n in (2, 5))
WINDOW = 4
ROW = [3, 3, *SMALL.ids.tolist(), 3, *LARGE.ids.tolist(), *SMALL.ids.tolist(), *SMALL.ids.tolist(), 3, 3]


def specified(ids: Sequence[int], window: int | None) -> NDArray[np.bool_]:
    return specified_mask(TABLE, ids, window)


def ahead(ids: NDArray[np.integer]) -> mx.array:
    return seen_ahead(TABLE.images_in(ids), (ids.shape[0], ids.shape[1]))


def filled(cache: Any, rows: int, n: int) -> None:
    cache.update_and_fetch(mx.zeros((rows, 1, n, 8)), mx.zeros((rows, 1, n, 8)))


@pytest.mark.parametrize("cuts", [[], [2], [5], [12, 14]])
@pytest.mark.parametrize(("make", "window"), [(KVCache, None), (lambda: RotatingKVCache(WINDOW), WINDOW)], ids=["all", "window"])
def test_a_row_on_plain_caches(make: Any, window: int | None, cuts: list[int]):
    truth, cache = specified(ROW, window), make()
    for begin, end in zip([0, *cuts], [*cuts, len(ROW)], strict=True):
        mask: Any = ImageBlocks(cache, ahead(np.array([ROW[begin:end]]))).make_mask(end - begin, window_size=window)
        held = mask.shape[-1] - (end - begin)  # a window's cache has forgotten what is before
        assert np.array_equal(np.broadcast_to(np.array(mask), (1, 1, *mask.shape[-2:]))[0, 0], truth[begin:end, begin - held : end])
        assert not truth[begin:end, : begin - held].any()
        filled(cache, 1, end - begin)


@pytest.mark.parametrize(("make", "window"), [(KVCache, None), (lambda: RotatingKVCache(WINDOW), WINDOW)], ids=["all", "window"])
def test_padded_rows_on_batch_caches(make: Any, window: int | None):
    rows = [ROW, [3, *LARGE.ids.tolist()], [3, 3, 3]]
    lengths, width = [len(row) for row in rows], len(ROW)
    tokens = np.stack([np.pad(np.array(row), (0, width - len(row))) for row in rows])
    single = make()
    cache = type(single).merge([make() for _ in rows])
    cache.prepare(lengths=lengths, right_padding=[width - n for n in lengths])
    for begin, end in ((0, 6), (6, 10), (10, width)):  # in the second row a picture is cut: each part sees itself
        mask = np.array(ImageBlocks(cache, ahead(tokens[:, begin:end])).make_mask(end - begin, window_size=window))
        mask = np.broadcast_to(mask, (3, 1, *mask.shape[-2:]))
        truth = specified(ROW, window)
        held = mask.shape[-1] - (end - begin)
        if begin != 6:
            assert np.array_equal(mask[0, 0], truth[begin:end, begin - held : end])
        for row, n in enumerate(lengths):
            if begin == 0:
                own = min(n, end)
                assert np.array_equal(mask[row, 0, :own, :own], specified(rows[row][:own], window))
        filled(cache, 3, end - begin)


def test_what_else_is_asked_goes_to_the_cache():
    cache = KVCache()
    filled(cache, 1, 3)
    view: Any = ImageBlocks(cache, mx.zeros((1, 1, 1, 1), mx.bool_))
    assert view.offset == 3
    filled(view, 1, 1)
    assert cache.offset == 4
    assert view.make_mask(1) is None
    assert not hasattr(view, "bits")


@pytest.mark.parametrize(
    ("tokens", "taken"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (6, 10), (9, 10), (10, 10), (11, 12), (12, 12), (13, 14), (14, 14), (15, 16), (16, 16)],
)
def test_calls_end_between_pictures(tokens: int, taken: int):
    assert len(ROW) == 16
    network = SimpleNamespace()
    ids = np.array([ROW, [3] * 16])
    assert uncut(network, ids, tokens) == tokens
    attend_in_blocks(network)
    assert uncut(network, ids, tokens) == taken
    assert uncut(network, ids[1:], tokens) == (tokens if tokens < 15 else 16)


def test_rows_that_are_cut_at_unlike_places():
    network = SimpleNamespace()
    attend_in_blocks(network)
    ids = np.array([[3, *LARGE.ids, 3, 3, 3, 3], [3, 3, 3, 3, 3, *SMALL.ids, 3, 3, 3]])
    assert [uncut(network, ids, n) for n in (1, 2, 5, 6, 7)] == [1, 7, 7, 7, 7]


def test_unlike_pictures_side_by_side_do_not_see_each_other():
    pictures: list[PromptImage] = [SMALL, LARGE]
    ids = np.concatenate([picture.ids for picture in pictures])[None]
    assert np.array_equal(ahead(ids)[0, 0], np.triu(specified(ids[0].tolist(), None), 1))


@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        ([ROW], True),
        ([[3, *SMALL.ids, *SMALL.ids], [*SMALL.ids, 3, 3, 3]], True),
        ([[3, 3, 3]], True),
        ([ROW[:8], ROW[8:]], False),
        ([[3, *LARGE.ids[:2]]], False),
        ([[*LARGE.ids[3:], 3]], False),
        ([[3, SMALL.ids[0]], [SMALL.ids[1], 3]], False),  # one row ends with its first token, the next begins with its last
        ([[SMALL.ids[0]], [SMALL.ids[1]]], False),
        ([[SMALL.ids[0], 3, SMALL.ids[1]]], False),
        ([[*SMALL.ids, SMALL.ids[0]]], False),
    ],
)
def test_a_call_that_cuts_a_picture_is_refused(rows: list[list[int]], whole: bool):
    ids = np.array(rows)
    if whole:
        require_whole(TABLE.images_in(ids), ids.shape)
    else:
        with pytest.raises(ValueError, match=r"a call of the model cuts the picture [25]: expected all [25] tokens"):
            require_whole(TABLE.images_in(ids), ids.shape)
