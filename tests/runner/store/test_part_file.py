"""Tests parts: each names its run and is whole, and one changed byte is noticed."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.files.file_stamp import sha256, stamp_of
from mlx_bulk.runner.store import results, row_order
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.part_file import PartDeclaration, check_part, read_part, write_part
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import read_errors, read_results

from ..support.sessions import flip, work

SCHEMA = pa.schema([("row", pa.int64()), ("text", pa.large_string())])
DECLARED = PartDeclaration("ab12", 3, 4, 4, 0, None)
BATCHES = [
    pa.record_batch({"row": [12, 13], "text": ["a", None]}, SCHEMA),
    pa.record_batch({"row": [14, 15], "text": ["é", "x" * 99]}, SCHEMA),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a part."""
    path = tmp_path_factory.mktemp("part") / "part-00000003.arrow"
    write_part(path, SCHEMA, BATCHES, DECLARED)
    return path.read_bytes()


def test_declared_parts_are_found_by_bytes_and_by_arrow(tmp_path: Path):
    path = tmp_path / "part"
    file = write_part(path, SCHEMA, BATCHES, DECLARED)
    assert file.sha256 == sha256(path)
    assert file.bytes == path.stat().st_size
    assert file.stamp == stamp_of(path.stat())
    assert check_part(path) == (DECLARED, file)
    with pa.memory_map(str(path)) as mapped:
        metadata = json.loads(pa.ipc.open_file(mapped).metadata[b"mlx-bulk"])
    assert {name: metadata[name] for name in ("run", "shard", "rows", "records", "errors")} == {
        "run": "ab12",
        "shard": 3,
        "rows": 4,
        "records": 4,
        "errors": 0,
    }
    assert list(read_part(path)) == BATCHES


def test_the_bytes_depend_on_nothing_else(tmp_path: Path, written: bytes):
    write_part(tmp_path / "part-00000003.g7.arrow", SCHEMA, iter(BATCHES), DECLARED)
    os.utime(tmp_path / "part-00000003.g7.arrow", (0, time.time()))
    assert (tmp_path / "part-00000003.g7.arrow").read_bytes() == written


def test_records_are_written_with_one_batch_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    batches = [pa.record_batch({"row": [place], "text": ["x" * 4096]}, SCHEMA) for place in range(256)]
    monkeypatch.setattr(row_order, "_BATCH_ROWS", 64)
    held, before = list[int](), pa.total_allocated_bytes()

    def told() -> Iterator[pa.RecordBatch]:
        for batch in row_order.sorted_records(batches):
            held.append(pa.total_allocated_bytes() - before)
            yield batch
            del batch

    write_part(tmp_path / "part", SCHEMA, told(), DECLARED)
    assert len(held) == 4
    assert max(held) < 1.5 * 64 * 4096


def test_every_truncation_is_noticed(tmp_path: Path, written: bytes):
    path = tmp_path / "part"
    for length in {*range(0, len(written), 7), *range(len(written) - 20, len(written))}:
        path.write_bytes(written[:length])
        assert check_part(path) is None


@given(st.data())
def test_every_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, written: bytes, data: st.DataObject):
    content = bytearray(written)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flipped") / "part"
    path.write_bytes(content)
    assert check_part(path) is None


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_any_other_file_is_no_part(tmp_path_factory: pytest.TempPathFactory, content: bytes, length: int):
    path = tmp_path_factory.mktemp("other") / "part"
    for tail in (b"", length.to_bytes(4, "little") + b"ARROW1"):
        path.write_bytes(content + tail)
        assert check_part(path) is None


def test_an_arrow_file_without_our_footer_is_no_part(tmp_path: Path):
    with pa.ipc.new_file(str(tmp_path / "part"), SCHEMA) as sink:
        sink.write_batch(BATCHES[0])
    assert check_part(tmp_path / "part") is None


@pytest.mark.parametrize("number", [0, 1])
def test_columns_and_text_that_look_like_the_footer_do_not_disturb_it(tmp_path: Path, number: int):
    for declared in (DECLARED, PartDeclaration("", 0, 1, 1, 0, None)):
        mimic = [DECLARED, PartDeclaration("", 0, 1, 1, 0, None)][number].bytes.decode()
        schema = pa.schema([("row", pa.int64()), (mimic, pa.large_string())])
        file = write_part(tmp_path / "part", schema, [pa.record_batch({"row": [1], mimic: [mimic]}, schema)], declared)
        assert check_part(tmp_path / "part") == (declared, file)


def test_a_part_that_cannot_be_finished_does_not_appear(tmp_path: Path):
    def batches() -> Any:
        yield BATCHES[0]
        raise OSError("disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        write_part(tmp_path / "part", SCHEMA, batches(), DECLARED)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------- readers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with results and errors, of which a shard is of a later generation."""
    path = tmp_path_factory.mktemp("read") / "run"
    work(path, rows=6)
    work(path)
    return path


def test_datasets_reads_the_parts(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    found = datasets.load_dataset("arrow", data_files=str(run / "results/*.arrow"), cache_dir=str(tmp_path / "cache"), split="train")
    assert found.to_list() == pa.Table.from_batches(read_results(run)).to_pylist()


def test_pyarrow_reads_the_folder(run: Path):
    import pyarrow.dataset as ds

    for folder, batches in (("results", read_results(run)), ("errors", read_errors(run))):
        assert ds.dataset(run / folder, format="ipc").to_table().to_pylist() == pa.Table.from_batches(batches).to_pylist()


def test_polars_reads_the_parts(run: Path):
    polars = pytest.importorskip("polars")
    assert polars.scan_ipc(run / "results/*.arrow").collect().to_dicts() == pa.Table.from_batches(read_results(run)).to_pylist()


def test_read_results_names_a_column_that_is_not_there(run: Path):
    assert next(iter(read_results(run, ["sample", "row"]))).schema.names == ["row", "sample"]
    with pytest.raises(RunDirError, match=r"no column \['text'\]; it has row, key"):
        list(read_results(run, ["text"]))


def test_a_part_replaced_while_others_are_read_is_read_in_its_new_generation(tmp_path: Path):
    work(tmp_path / "run", rows=6)
    batches = read_results(tmp_path / "run", ["row"])
    assert next(batches).column("row").to_pylist() == [0, 0, 1, 1, 3, 3]
    work(tmp_path / "run", rows=8)
    assert [row for batch in batches for row in batch.column("row").to_pylist()] == [4, 4, 5, 5, 6, 7, 7]


def test_a_committed_part_that_is_gone_is_named(tmp_path: Path):
    work(tmp_path / "run")
    (tmp_path / "run/results/part-00000001.arrow").unlink()
    with pytest.raises(RunDirError, match=r"part-00000001\.arrow: commits\.jsonl says it is there, but it is not"):
        list(read_results(tmp_path / "run"))


@pytest.mark.parametrize(("folder", "read"), [("results", read_results), ("errors", read_errors)])
def test_a_committed_part_that_was_damaged_is_not_parsed(tmp_path: Path, folder: str, read: Callable[[Path], Iterator[pa.RecordBatch]]):
    work(tmp_path / "run")
    part = tmp_path / "run" / folder / "part-00000000.arrow"
    found = part.stat()
    flip(part)
    os.utime(part, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(RunDirError, match=rf"{folder}/part-00000000\.arrow: is damaged .*Start that run again, with its own mlx-bulk run"):
        list(read(tmp_path / "run"))


def test_a_damaged_part_that_was_redone_meanwhile_is_read_in_its_new_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run"
    work(path)
    whole = pa.Table.from_batches(read_results(path)).to_pylist()
    real, logs = results.read_commits, [read_commits(RunPaths(path))]
    flip(path / "results/part-00000001.arrow")
    damaged = (path / "results/part-00000001.arrow").read_bytes()
    work(path)
    (path / "results/part-00000001.arrow").write_bytes(damaged)  # as it stood when the reader came there
    monkeypatch.setattr(results, "read_commits", lambda paths: logs.pop() if logs else real(paths))
    assert pa.Table.from_batches(read_results(path)).to_pylist() == whole


def test_readers_hash_the_parts_of_a_copied_run_once_and_others_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hashed: list[Path] = []
    monkeypatch.setattr(results, "sha256", lambda part: (hashed.append(part), sha256(part))[1])
    work(tmp_path / "run")
    whole = list(read_results(tmp_path / "run"))
    assert hashed == []
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert list(read_results(tmp_path / "copy")) == list(read_results(tmp_path / "copy")) == whole
    assert len(hashed) == 3


def test_a_reader_finds_no_errors_that_a_retry_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run"
    work(path)
    real, logs = results.read_commits, [read_commits(RunPaths(path))]
    work(path, retry=True, failing=frozenset())
    monkeypatch.setattr(results, "read_commits", lambda paths: logs.pop() if logs else real(paths))
    assert list(read_errors(path)) == []
    assert not logs
