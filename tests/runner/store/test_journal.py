"""Tests damage to a journal: the records read back are always the first ones that were written."""

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.journal import Header, Journal

RESULTS = [pa.record_batch({"row": [row], "text": ["x" * row]}) for row in range(3)]
ERRORS = [pa.record_batch({"row": [7], "message": ["no"]})]
HEADER = Header(3, 2, base=1, retry=3)
FRAMES = [(journal.RESULTS, RESULTS[0]), (journal.ERRORS, ERRORS[0]), (journal.RESULTS, RESULTS[1]), (journal.RESULTS, RESULTS[2])]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """A journal of a header and four frames, and the offset at which each ends."""
    path = tmp_path_factory.mktemp("journal") / "00000003"
    journal.begin(path, HEADER)
    ends = [path.stat().st_size]
    for kind, batch in FRAMES:
        journal.append(path, kind, batch)
        ends.append(path.stat().st_size)
    journal.sync_journal(path)
    return path.read_bytes(), ends


def first(frames: int) -> Journal | None:
    """Returns what is read of a journal that ends after so many frames, the header included."""
    if not frames:
        return None
    kinds = FRAMES[: frames - 1]
    results = [batch for kind, batch in kinds if kind == journal.RESULTS]
    return Journal(HEADER, results, [batch for kind, batch in kinds if kind == journal.ERRORS])


def test_round_trip_is_zero_copy(tmp_path: Path, written: tuple[bytes, list[int]]):
    (tmp_path / "00000000").write_bytes(written[0])
    before = pa.total_allocated_bytes()
    found = journal.read_journal(tmp_path / "00000000")
    assert found == first(5)
    assert pa.total_allocated_bytes() == before


@pytest.mark.slow
def test_every_truncation_gives_the_frames_before_it(tmp_path: Path, written: tuple[bytes, list[int]]):
    content, ends = written
    path = tmp_path / "00000000"
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert journal.read_journal(path) == first(whole)
        assert path.stat().st_size == ([0, *ends])[whole]


@given(st.data())
def test_a_flipped_bit_anywhere_drops_its_frame_and_what_follows(
    tmp_path_factory: pytest.TempPathFactory, written: tuple[bytes, list[int]], data: st.DataObject
):
    content, ends = written
    offset = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[offset] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("journal") / "00000000"
    path.write_bytes(damaged)
    whole = sum(end <= offset for end in ends)
    assert journal.read_journal(path) == first(whole)
    assert path.stat().st_size == ([0, *ends])[whole]


def test_payloads_are_aligned_in_the_file(tmp_path: Path):
    for shard in range(8):
        journal.begin(tmp_path / f"{10**shard}", Header(10**shard, 1))
        assert (tmp_path / f"{10**shard}").stat().st_size % 8 == 0


def test_a_journal_is_rewritten_with_another_header_and_less_in_it(tmp_path: Path, written: tuple[bytes, list[int]]):
    path = tmp_path / "00000003"
    path.write_bytes(written[0])
    found = journal.read_journal(path)
    assert found is not None
    journal.rewrite(path, Header(3, 2), found.results, [])
    journal.append(path, *FRAMES[1])
    assert journal.read_journal(path) == Journal(Header(3, 2), RESULTS, ERRORS)
    assert list(tmp_path.iterdir()) == [path]


def test_frames_can_follow_a_cut(tmp_path: Path, written: tuple[bytes, list[int]], caplog: pytest.LogCaptureFixture):
    path = tmp_path / "00000000"
    path.write_bytes(written[0][:-1])
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        journal.read_journal(path)
    assert "cut off" in caplog.text
    journal.append(path, *FRAMES[3])
    assert journal.read_journal(path) == first(5)
