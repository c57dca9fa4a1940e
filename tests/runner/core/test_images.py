"""Pictures as ranges of ids beyond the vocabulary."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mlx_bulk.runner.core.errors import OutOfRoom
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID, ImageTable, PromptImage

PLACEHOLDER = 7


def register(table: ImageTable, digest: str, tokens: int = 4) -> PromptImage:
    return table.register(digest, tokens, (1, 1, tokens), lambda: {"pixel_values": np.zeros((1, 3))})


def test_equal_digests_give_the_same_object_as_long_as_it_lives() -> None:
    table = ImageTable(PLACEHOLDER)
    first, other = register(table, "a"), register(table, "b", 3)
    assert register(table, "a") is first
    assert (first.first, other.first) == (FIRST_IMAGE_ID, FIRST_IMAGE_ID + 4)
    assert other.ids.tolist() == [FIRST_IMAGE_ID + 4, FIRST_IMAGE_ID + 5, FIRST_IMAGE_ID + 6]


def test_ids_are_given_anew_after_a_picture_died() -> None:
    table = ImageTable(PLACEHOLDER)
    first = register(table, "a").first
    gc.collect()
    with pytest.raises(KeyError, match=f"no picture in memory has the id {first}"):
        table.image_of(first)
    again = register(table, "a")
    assert again.first == first + 4
    assert table.image_of(again.first + 3) is again


def test_ids_of_no_picture_are_refused() -> None:
    table = ImageTable(PLACEHOLDER)
    image = register(table, "a")
    for outside in (image.first - 1, image.first + image.tokens, 12):
        with pytest.raises(KeyError):
            table.image_of(outside)


def test_ids_wrap_around_past_pictures_that_live() -> None:
    table = ImageTable(PLACEHOLDER, end=FIRST_IMAGE_ID + 20)
    kept, passing = register(table, "kept", 5), register(table, "passing", 12)
    del passing
    gc.collect()
    wrapped = register(table, "next", 6)
    assert wrapped.first == kept.first + 5
    last = register(table, "last", 9)
    assert last.first == wrapped.first + 6
    assert [table.image_of(image.first + image.tokens - 1) for image in (kept, wrapped, last)] == [kept, wrapped, last]
    with pytest.raises(OutOfRoom, match=r"20 tokens in all.*lower batch\.rows"):
        register(table, "one more", 1)


def test_ranges_of_living_pictures_never_meet() -> None:
    rng, table = np.random.default_rng(0), ImageTable(PLACEHOLDER, end=FIRST_IMAGE_ID + 400)
    alive: list[PromptImage] = []
    for turn in range(2000):
        if len(alive) > 8:
            del alive[int(rng.integers(len(alive)))]
        alive.append(register(table, str(turn), int(rng.integers(1, 30))))
        taken = np.concatenate([image.ids for image in alive])
        assert len(np.unique(taken)) == len(taken)
        assert taken.max() < FIRST_IMAGE_ID + 400
    assert all(table.image_of(int(i)) is image for image in alive for i in image.ids)


def test_threads_that_register_one_picture_get_one_object() -> None:
    table = ImageTable(PLACEHOLDER)
    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(lambda i: register(table, f"picture {i % 50}"), range(2000)))
    assert len({id(image) for image in images}) == 50
    assert len({image.first for image in images}) == 50


def test_pictures_of_a_call_with_their_places() -> None:
    table = ImageTable(PLACEHOLDER)
    a, b = register(table, "a", 3), register(table, "b", 2)
    ids = np.array([[1, *b.ids, 2, *a.ids[1:]], [*a.ids, *b.ids, 5]], np.int32)  # the first row begins within a
    parts = table.images_in(ids)
    assert [part.image for part in parts] == [b, a]
    assert parts[0].indices.tolist() == [1, 2, 9, 10]
    assert parts[0].offsets.tolist() == [0, 1, 0, 1]
    assert parts[1].indices.tolist() == [4, 5, 6, 7, 8]
    assert parts[1].offsets.tolist() == [1, 2, 0, 1, 2]
    assert table.images_in(np.array([[1, 2, 3]])) == []
    assert table.plain(ids).tolist() == [[1, 7, 7, 2, 7, 7], [7, 7, 7, 7, 7, 5]]
