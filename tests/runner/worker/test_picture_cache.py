"""The ring of a worker's pictures: what it gives is what was put in, and it never grows beyond its limit."""

import os
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.worker import picture_cache
from mlx_bulk.runner.worker.picture_cache import PictureCache


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def kept(cache: PictureCache, names: str) -> str:
    """The names under which there is something."""
    return "".join(name for name in names if cache.digest(name))


def put(cache: PictureCache, name: str, size: int, fill: int = 0) -> bytes:
    data = (name.encode() + bytes([fill])) * size
    cache.keep(name, digest_of(data[:size]), data[:size])
    return data[:size]


def test_the_oldest_make_room_for_the_newest() -> None:
    cache = PictureCache(100)
    for name in "abc":
        put(cache, name, 30)
    assert kept(cache, "abc") == "abc"
    put(cache, "d", 20)  # there is no room behind c: it goes to the beginning
    assert kept(cache, "abcd") == "bcd"
    put(cache, "e", 10)
    assert kept(cache, "abcde") == "bcde"
    put(cache, "f", 40)
    assert kept(cache, "abcdef") == "def"
    put(cache, "g", 100)
    assert kept(cache, "abcdefg") == "g"
    put(cache, "h", 101)
    assert kept(cache, "gh") == "g"


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 60), st.integers(0, 3)), max_size=60))
def test_what_comes_out_is_what_was_put_in_last(steps: list[tuple[str, int, int]]) -> None:
    cache, last = PictureCache(100), dict[str, bytes]()
    for name, size, fill in steps:
        last[name] = put(cache, name, size, fill)
        assert cache.read(name, digest_of(last[name])) == last[name]  # the newest is always there
        for each, data in last.items():
            assert cache.digest(each) in ("", digest_of(data))
            assert cache.read(each, digest_of(data)) in (None, data)
        assert sum(len(data) for each, data in last.items() if cache.digest(each)) <= 100


def test_damage_of_the_file_and_a_full_disk_cost_no_more_than_sending_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PictureCache(100)
    data = put(cache, "a", 30)
    written: Any = os.pwrite
    with monkeypatch.context() as changed:
        changed.setattr(picture_cache.os, "pread", lambda *where: b"x" * 30)
        assert cache.read("a", digest_of(data)) is None
    assert cache.digest("a") == ""
    with monkeypatch.context() as changed:

        def fail(*what: Any) -> int:
            raise OSError(28, "No space left on device")

        changed.setattr(picture_cache.os, "pwrite", fail)
        put(cache, "a", 30)
        assert cache.digest("a") == ""
        changed.setattr(picture_cache.os, "pwrite", lambda file, data, begin: written(file, data[:-1], begin))
        put(cache, "a", 30)
    assert cache.digest("a") == ""
    assert cache.read("a", digest_of(put(cache, "a", 30))) == data
