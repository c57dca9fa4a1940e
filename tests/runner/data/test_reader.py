"""Reads every format in every compression: rows, keys, positions, bad rows, and bounded memory."""

import bz2
import gzip
import json
import tracemalloc
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import scan

from ..support.read_inputs import ROWS, encoded, read_all


def _columns(rows: list[Row | BadRow]) -> list[dict[str, Any] | str]:
    return [row.columns if isinstance(row, Row) else row.message for row in rows]


def _zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow", "stream", "csv", "tsv", "txt"])
def test_every_format_in_every_compression(tmp_path: Path, form: str, ending: str) -> None:
    compress: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": _zstd, ".bz2": bz2.compress}
    path = tmp_path / f"rows.{'arrow' if form == 'stream' else form}{ending}"
    path.write_bytes(compress[ending](encoded(form)))
    expected = [{"text": row["q"]} for row in ROWS] if form == "txt" else ROWS
    assert _columns(read_all(path, tmp_path)) == expected


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", _zstd), (".bz2", bz2.compress)])
def test_all_members_of_a_compressed_file_are_read(tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"rows.jsonl{ending}"
    path.write_bytes(compress(b'{"c": 1}\n{"c"') + compress(b": 2}\n") + compress(b'{"c": 3}\n'))
    assert _columns(read_all(path, tmp_path)) == [{"c": 1}, {"c": 2}, {"c": 3}]


BAD_LINES = {
    b"{": "not valid JSON",
    b'{"a": 1': "not valid JSON",
    b'{"a": 1} {}': "Extra data",
    b"[1]": "found an array",
    b'"s"': "found a string",
    b"null": "found null",
    b'{"a": "\xff"}': "not valid UTF-8 (byte 8 of the line)",
    b'{"a": "\xed\xa0\x80"}': "not valid UTF-8",
    b'{"a": "\\ud800"}': "surrogate",
    b'{"\\uDC00": 1}': "surrogate",
    b'{"a": "x\0"}': "NUL",
    b"\0\0\0": "NUL",
    b'{"a": ' + b"9" * 5000 + b"}": "digits",
    b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}": "nested deeper",
    b'{"a": ' + b"[" * 100_000: "nested deeper",
}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


GOOD_LINES = st.dictionaries(TEXTS, st.integers() | TEXTS)


@given(
    st.lists(GOOD_LINES | st.sampled_from([*BAD_LINES, b"", b"  \t"]), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
)
def test_bad_lines_spoil_only_themselves(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any] | bytes], newline: bytes, bom: bool, last: bool
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    raw = [line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode() for line in lines]
    (folder / "rows.jsonl").write_bytes((b"\xef\xbb\xbf" if bom else b"") + newline.join(raw) + (newline if last else b""))
    expected = [(number, line) for number, line in enumerate(lines, 1) if not isinstance(line, bytes) or line.strip()]
    rows = read_all(folder / "rows.jsonl", folder)
    assert [row.position for row in rows] == list(range(len(expected)))
    for row, (number, line) in zip(rows, expected, strict=True):
        if isinstance(line, bytes):
            assert isinstance(row, BadRow)
            assert row.line == number
            assert f"rows.jsonl, line {number}: " in row.message
            assert BAD_LINES[line] in row.message
            assert row.text == line.decode(errors="replace")
        else:
            assert isinstance(row, Row)
            assert row.columns == line


def test_line_separators_inside_strings_stay(tmp_path: Path) -> None:
    row = {"c": "a\u2028b\u0085c\x0bd\u0000"}  # an escaped NUL is legal JSON
    (tmp_path / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert _columns(read_all(tmp_path / "rows.jsonl", tmp_path)) == [row]


def test_csv_cells_and_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b'\xef\xbb\xbfid,text\r\n1,"two\nlines, ""quoted"""\r\n\r\n2,\r\n3\r\n4,a,b\r\n5,\xff\r\n6,"x"y\r\n7,\x00\r\n8,'
        + b"x" * 200_000
        + b"\r\n"
    )
    rows = read_all(path, tmp_path)
    good = [row.columns for row in rows if isinstance(row, Row)]
    assert good == [{"id": "1", "text": 'two\nlines, "quoted"'}, {"id": "2", "text": None}, {"id": "8", "text": "x" * 200_000}]
    bad = [(row.position, row.line, row.text, row.message.partition(": ")[2]) for row in rows if isinstance(row, BadRow)]
    assert [entry[:3] for entry in bad] == [(2, 6, "3"), (3, 7, "4,a,b"), (4, 8, "5,\ufffd"), (5, 9, '6,"x"y'), (6, 10, "7,\0")]
    assert bad[0][3] == "has 1 cell where the header has 2"
    assert "UTF-8" in bad[2][3]


def test_a_quote_that_never_closes_is_one_bad_row(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a\nx\n"y\nz\n')
    good, bad = read_all(tmp_path / "rows.csv", tmp_path)
    assert isinstance(good, Row)
    assert isinstance(bad, BadRow)
    assert "line 3: not valid CSV: a quote in this line is never closed" in bad.message
    assert bad.message.endswith("lines behind it: 1")


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"m": {"id": 7}}\n{"m.id": "dotted"}\n{"m": {"id": null}}\n{"m": {"id": [1]}}\n')
    rows = read_all(path, tmp_path, key="m.id")
    assert [row.key for row in rows if isinstance(row, Row)] == ["7", "dotted"]
    null, array = (row for row in rows if isinstance(row, BadRow))
    assert "line 3: the key 'm.id' is null or missing" in null.message
    assert json.loads(null.text) == {"m": {"id": None}}
    assert "is a list" in array.message
    assert [row.key for row in read_all(path, tmp_path) if isinstance(row, Row)] == ["0", "1", "2", "3"]


def test_positions_run_over_sources_and_skip_and_limit_hold(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"c": 0}\nbad\n')
    pq.write_table(pa.table({"c": [2, 3]}), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("c\n4\n5\n")
    rows = read_all(tmp_path, tmp_path / "run", [range(1, 2), range(3, 5)], limit=5)
    assert [(row.position, row.columns["c"] if isinstance(row, Row) else "bad") for row in rows] == [(1, "bad"), (3, 3), (4, "4")]


def test_python_values_of_tables(tmp_path: Path) -> None:
    days = pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32())  # the second is past year 9999
    pq.write_table(pa.table({"day": days, "s": [{"x": [1.5]}, None]}), tmp_path / "t.parquet")
    good, bad = read_all(tmp_path / "t.parquet", tmp_path)
    assert isinstance(good, Row)
    assert good.columns == {"day": date(1970, 1, 1), "s": {"x": [1.5]}}
    assert isinstance(bad, BadRow)
    assert "row 1 of the input: a cell has no Python value" in bad.message


def test_broken_utf8_in_a_table_spoils_its_row_alone(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"]).buffers())
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("c", pa.string())])) as writer:
        writer.write_batch(pa.record_batch([broken], names=["c"]))
    assert [type(row) for row in read_all(tmp_path / "t.arrow", tmp_path)] == [Row, BadRow]


def test_a_local_folder_as_hub_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"id": f"k{n}", "n": n}) + "\n" for n in range(1500)))
    config = DataConfig(path=f"hf:{folder}", key="id", limit=1200)
    first, second = scan(config, tmp_path), scan(config.model_copy(update={"limit": None}), tmp_path)
    assert (first.rows, second.rows, second.present) == (1200, 1500, {"id": 1500, "n": 1500})
    assert first.sources[0].sha256 == second.sources[0].sha256  # of the whole dataset, so that a longer limit extends a run
    rows = list(read_rows(first, config, [range(1198, 1200)]))
    assert rows == [Row(n, f"k{n}", {"id": f"k{n}", "n": n}) for n in (1198, 1199)]
    with pytest.raises(DataError, match=r"cannot be loaded \(data\.split 'nope'"):
        scan(config.model_copy(update={"split": "nope"}), tmp_path)


@pytest.mark.parametrize("form", [pytest.param("jsonl", marks=pytest.mark.slow), "parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, form: str) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.{form}"
        if form == "jsonl":
            path.write_bytes(b"".join(b'{"id": %d, "text": "some words of a row"}\n' % n for n in range(count)))
        else:
            pq.write_table(pa.table({"id": range(count), "text": ["some words of a row"] * count}), path)
        config = DataConfig(path=str(path))
        tracemalloc.start()
        total = sum(1 for _ in read_rows(scan(config, tmp_path), config, [range(count)]))
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == count
        return held

    # Buffers dominate both (1 MiB of text, 1024 rows of a table); ten times the rows would show as ten times the memory.
    peak(100)
    assert peak(20_000) < 1.5 * peak(2_000)
