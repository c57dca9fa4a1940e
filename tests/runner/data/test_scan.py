"""The scan: counts, hashes, types, keys, sources and stdin, and errors that stop the job."""

import gzip
import hashlib
import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import accept_stdin, scan
from mlx_bulk.runner.data.scan_result import Scan
from mlx_bulk.runner.data.spooled_stdin import drop_spooled
from mlx_bulk.runner.data.type_inference import JSON_METADATA, json_text
from mlx_bulk.runner.store.arrow_builder import record_batch

from ..support.input_scans import jsonl, scanned


def _types(found: Scan) -> dict[str, str]:
    return {field.name: "json" if field.metadata == JSON_METADATA else str(field.type) for field in found.schema}


def test_columns_and_fields_within_them_take_the_order_of_others(tmp_path: Path) -> None:
    found = scanned(tmp_path, jsonl(tmp_path / "rows.jsonl", [{"new": 1, "b": [{"y": 1, "z": {"q": 1, "p": 2}, "x": 2}], "a": "s"}]))
    recorded = pa.struct(
        [
            ("gone", pa.int8()),
            ("a", pa.string()),
            ("b", pa.large_list(pa.struct([("x", pa.int64()), ("z", pa.struct([("p", pa.int64()), ("q", pa.int64())]))]))),
        ]
    )
    ordered = found.in_order_of(recorded)
    assert ordered.columns == ["a", "b", "new"]
    [b] = [field.type for field in ordered.schema if field.name == "b"]
    assert [field.name for field in b.value_type] == ["x", "z", "y"]
    assert [field.name for field in b.value_type.field("z").type] == ["p", "q"]
    assert type(b) is type(found.schema.field("b").type)
    assert ordered.in_order_of(pa.struct(list(found.schema))).schema.equals(found.schema, check_metadata=True)


def test_counts_hashes_and_presence(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\nnot json\n{"a": null, "b": "x"}\n')
    found = scanned(tmp_path, path)
    assert (found.rows, found.bad, found.columns, found.present) == (3, 1, ["a", "b"], {"a": 1, "b": 1})
    source = found.fingerprint()["sources"][0]
    assert source["bytes"] == path.stat().st_size
    assert source["appendable"]
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None, -(2**63)], "int64"),
        ([1, 2.5], "double"),
        ([2**53, 2.5], "double"),
        ([2**53 + 1, 2.5], "json"),
        ([2**63], "json"),
        ([True, False], "bool"),
        ([True, 1], "json"),
        (["x", 1], "json"),
        (["x"], "large_string"),
        ([None], "large_string"),
        ([[]], "list<item: string>"),
        ([["a"], [None]], "list<item: string>"),
        ([[1], [0.5, None]], "list<item: double>"),
        ([[1, "a"]], "json"),
        ([{}], "json"),
        ([{"x": {}}], "json"),
        ([{"x": 1}, {"y": "s"}, {}], "struct<x: int64, y: string>"),
        ([{"x": 1}, {"x": [1]}], "json"),
        ([{f"k{i}": 1} for i in range(128)], "struct<" + ", ".join(f"k{i}: int64" for i in range(128)) + ">"),
        ([{f"k{i}": 1} for i in range(129)], "json"),
    ],
)
def test_json_types(tmp_path: Path, values: list[Any], expected: str) -> None:
    found = scanned(tmp_path, jsonl(tmp_path / "rows.jsonl", [{"c": value} for value in values]))
    assert _types(found) == {"c": expected}
    struct = found.input_type("all")
    assert struct is not None
    kept = record_batch(pa.schema([("input", struct)]), [{"input": {"c": value}} for value in values]).column(0).to_pylist()
    if expected == "json":
        assert [row["c"] if row["c"] is None else json.loads(row["c"]) for row in kept] == values
    elif not expected.startswith("struct"):
        assert [row["c"] for row in kept] == values


def test_numbers_that_json_lacks_are_named_in_json_text() -> None:
    value = {"a": float("inf"), "b": [1.5, float("nan"), {"c": -float("inf")}], "d": Decimal("1.5"), "e": (float("inf"), None)}
    text = json_text(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": "Infinity",
        "b": [1.5, "NaN", {"c": "-Infinity"}],
        "d": "1.5",
        "e": ["Infinity", None],
    }


def test_deeply_nested_values_become_json(tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(60):
        value = {"v": value}
    assert _types(scanned(tmp_path, jsonl(tmp_path / "rows.jsonl", [{"c": value}]))) == {"c": "json"}


def test_table_types_are_what_every_reader_holds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "d": pa.array(["x", "y"]).dictionary_encode(),
            "v": pa.array(["x", "y"], pa.string_view()),
            "l": pa.array([["x"], []], pa.large_list(pa.large_string())),
            "n": pa.nulls(2),
            "t": pa.array([0, 1], pa.timestamp("us", tz="UTC")),
            "m": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "b": pa.array([b"\xff", b""]),
        }
    )
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert _types(scanned(tmp_path, tmp_path / "t.arrow")) == {
        "d": "large_string", "v": "large_string", "l": "list<item: string>", "n": "large_string",
        "t": "timestamp[us, tz=UTC]", "m": "decimal128(5, 2)", "b": "binary",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.array([1]), pa.array([0.5]), "double"),
        (pa.array([2**60]), pa.array([0.5]), "json"),
        (pa.array([1], pa.int16()), pa.array([1]), "int64"),
        (pa.array([1]), pa.array(["x"]), "json"),
        (pa.nulls(1), pa.array([1]), "int64"),
    ],
)
def test_types_are_unified_over_files(tmp_path: Path, first: pa.Array, second: pa.Array, expected: str) -> None:
    pq.write_table(pa.table({"c": first}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"c": second}), tmp_path / "b.parquet")
    assert _types(scanned(tmp_path, tmp_path / "*.parquet")) == {"c": expected}


def test_keep(tmp_path: Path) -> None:
    found = scanned(tmp_path, jsonl(tmp_path / "rows.jsonl", [{"question": "q", "id": 1, "answer": "a"}]))
    kept = found.input_type(["answer", "question"])
    assert kept is not None
    assert [field.name for field in kept] == ["question", "answer"]
    assert found.input_type("none") is None
    with pytest.raises(DataError, match=r"data.keep: no row has a column 'answr'. Did you mean 'answer'\? .*question, id"):
        found.input_type(["answr"])


def test_empty_input_is_legal(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    found = scanned(tmp_path, tmp_path / "rows.jsonl", key="id", keep=["x"])
    assert (found.rows, found.input_type("all"), found.input_type(["x"])) == (0, None, None)


def test_duplicate_keys_name_both_lines(tmp_path: Path) -> None:
    one = jsonl(tmp_path / "a.jsonl", [{"m": {"id": 1}}, {"m": {"id": 2}}])
    two = jsonl(tmp_path / "b.jsonl", [{"m": {}}, {"m": {"id": "2"}}])
    with pytest.raises(DataError, match=r"'2' in 'm\.id': .*a\.jsonl, line 2, and .*b\.jsonl, line 2"):
        scanned(tmp_path, [str(one), str(two)], key="m.id")
    pq.write_table(pa.table({"id": [5, None, None, 5]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"row 0 of the input, and .* row 3 of the input"):
        scanned(tmp_path, tmp_path / "t.parquet", key="id")
    assert scanned(tmp_path, tmp_path / "t.parquet", key="id", limit=3).bad == 2


def test_a_key_no_row_has(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.key: no row has a column 'idd'. Did you mean 'id'"):
        scanned(tmp_path, jsonl(tmp_path / "rows.jsonl", [{"id": 1}]), key="idd")


def test_limit_covers_sources(tmp_path: Path) -> None:
    paths = [str(jsonl(tmp_path / f"{n}.jsonl", [{"c": 1}, {"c": 2}])) for n in range(3)]
    found = scanned(tmp_path, paths, limit=3)
    assert [one.rows for one in found.sources] == [2, 1, 0]
    assert found.rows == 3
    assert [one["rows"] for one in found.fingerprint()["sources"]] == [2, 1]


def test_folder_is_read_by_name_and_links_out_of_it_are_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    outside = jsonl(tmp_path / "outside.jsonl", [{"c": 0}])
    for name in ("b.jsonl", "sub/c.jsonl", "a.jsonl", ".hidden.jsonl"):
        jsonl(folder / name, [{"c": 1}])
    (folder / "README.md").touch()
    (folder / "aa.jsonl").symlink_to(outside)
    (folder / "there").symlink_to(tmp_path)
    found = scanned(tmp_path, folder)
    assert [Path(one.source.path).name for one in found.sources] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert "aa.jsonl" in caplog.text
    assert str(folder / "there") in caplog.text


def test_missing_files_and_unknown_formats(tmp_path: Path) -> None:
    jsonl(tmp_path / "prompts.jsonl", [{"c": 1}])
    with pytest.raises(DataError, match=r"prompt\.jsonl does not exist .*Near names there: prompts\.jsonl"):
        scanned(tmp_path, tmp_path / "prompt.jsonl")
    with pytest.raises(DataError, match="neither does the folder"):
        scanned(tmp_path, tmp_path / "no" / "x.jsonl")
    with pytest.raises(DataError, match="no file matches"):
        scanned(tmp_path, tmp_path / "*.csv")
    with pytest.raises(DataError, match="holds no file to read"):
        scanned(tmp_path, tmp_path, format="csv")
    (tmp_path / "rows.dat").write_text('{"c": 1}\n')
    with pytest.raises(DataError, match=r"Set data\.format to one of arrow, csv, json, jsonl, parquet, text"):
        scanned(tmp_path, tmp_path / "rows.dat")
    assert scanned(tmp_path, tmp_path / "rows.dat", format="jsonl").rows == 1
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match="not a regular file"):
        scanned(tmp_path, tmp_path / "pipe.jsonl")


def test_one_json_object_is_refused_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{\n "a": 1\n}\n')
    with pytest.raises(DataError, match=r"one JSON object; .* jq"):
        scanned(tmp_path, tmp_path / "rows.json")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.jsonl.gz", "x.jsonl.zst", "x.jsonl.bz2"])
def test_files_whose_ending_is_wrong(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is none of these, but it is long enough to hold a header")
    with pytest.raises(DataError, match=f"{name}: cannot be read as"):
        scanned(tmp_path, tmp_path / name)


def test_a_truncated_gzip_stops_the_job(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"c": %d}\n' % n for n in range(1000)))
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[:-100])
    with pytest.raises(DataError, match="Truncated"):
        scanned(tmp_path, tmp_path / "rows.jsonl.gz")


def test_stdin_is_spooled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"c": 1}\n{"c": 2}\n')))
    found = accept_stdin(scanned(tmp_path, "-"))
    assert (tmp_path / "run" / "stdin.jsonl").read_bytes() == b'{"c": 1}\n{"c": 2}\n'
    assert [row.position for row in read_rows(found, DataConfig(path="-"), [range(2)])] == [0, 1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert scanned(tmp_path, "-").rows == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n1\n")))
    assert scanned(tmp_path, "-", format="csv").columns == ["a"]


def test_piped_rows_wait_until_the_run_accepts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "run" / "stdin.jsonl"

    def piped(rows: bytes, afresh: bool = False) -> Scan:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rows)))
        return scan(DataConfig(path="-"), kept.parent, afresh)

    first = accept_stdin(piped(b'{"c": 1}\n'))
    longer = piped(b'{"c": 1}\n{"c": 2}\n')
    assert (longer.rows, kept.read_bytes()) == (2, b'{"c": 1}\n')
    assert [one["path"] for one in longer.fingerprint()["sources"]] == [str(kept)]
    drop_spooled(kept.parent)
    assert piped(b"").sources == first.sources == piped(b'{"c": 1}\n').sources
    assert accept_stdin(piped(b'{"c": 1}\n{"c": 2}\n')).rows == piped(b"").rows == 2
    assert (piped(b"", afresh=True).rows, piped(b'{"d": 1}\n', afresh=True).columns, piped(b"").rows) == (0, ["d"], 2)
    drop_spooled(kept.parent)
    assert [file.name for file in kept.parent.iterdir()] == [kept.name]


def test_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="names a column twice: a"):
        scanned(tmp_path, tmp_path / "x.csv")
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="more than one column named a"):
        scanned(tmp_path, tmp_path / "x.arrow")
