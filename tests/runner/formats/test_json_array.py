"""A file that is one JSON array: its elements are rows, whatever their layout; a bad one spoils its own row only."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.formats import json_array
from mlx_bulk.runner.formats.json_array import array_entries
from mlx_bulk.runner.formats.source import Source

from ..support.input_scans import scanned
from ..support.read_inputs import read_all

ROWS: list[dict[str, Any]] = [
    {"q": 'a "quote", a [bracket] and a {brace}', "n": 1},
    {"q": "back\\slash\\\\", "inner": {"l": [[1], {"x": "]"}]}},
    {"q": "säy \u2028", "n": None},
]
LAYOUTS = {
    "compact": json.dumps(ROWS, separators=(",", ":")),
    "pretty": json.dumps(ROWS, indent=4, ensure_ascii=False),
    "a row a line": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "with a mark and blanks": "\ufeff\n\n  [ " + " , \n\n".join(map(json.dumps, ROWS)) + " ,\n ]\n\n",
}

_json = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4)


def columns(path: Path, **keys: Any) -> list[dict[str, Any]]:
    return [row.columns for row in read_all(path, path.parent / "run", **keys) if isinstance(row, Row)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_rows_are_the_arrays_elements(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(layout)
    assert columns(path) == ROWS
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(layout.encode()))
    assert columns(tmp_path / "rows.json.gz") == ROWS
    (tmp_path / "rows.dat").write_text(layout)
    assert columns(tmp_path / "rows.dat", format="json") == ROWS
    [source] = scanned(tmp_path, path).fingerprint()["sources"]
    assert (source["format"], source["appendable"], source["rows"]) == ("json", False, 3)


@settings(max_examples=15)
@given(rows=st.lists(st.dictionaries(st.text(), _json)), indent=st.none() | st.integers(0, 3), piece=st.integers(1, 40))
def test_any_array_is_read_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: int, piece: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(rows, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "_PIECE", piece)
        assert [entry.parse() for entry in array_entries(Source(str(path), "json"))] == rows


def test_rows_that_are_not_wanted_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"n": n} for n in range(50)], indent=1))
    chosen = [range(3, 5), range(5, 7), range(40, 50)]
    rows = [entry.parse()["n"] for entry in array_entries(Source(str(path), "json"), chosen)]
    assert rows == [n for span in chosen for n in span]


def test_a_bad_element_costs_its_own_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[\n{"q": 1},\n{"q": NaN},\n3, "x", , {"q": 1, "q": 2},\n{"q": tru},\n\n {"q": 4}\n]')
    rows = read_all(path, tmp_path / "run")
    assert [row.columns["q"] for row in rows if isinstance(row, Row)] == [1, 4]
    bad = [row for row in rows if isinstance(row, BadRow)]
    assert [(row.position, row.line) for row in bad] == [(1, 3), (2, 4), (3, 4), (4, 4), (5, 4), (6, 5)]
    assert "rows.json, line 3: not valid JSON: NaN is Python's" in bad[0].message
    assert "expected a JSON object, found a number" in bad[1].message
    assert [row.place for row in rows if isinstance(row, Row)][-1].endswith("rows.json, line 7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"q": 1},\n {"q": 2', r"the array does not end: the file is cut off, or the element that begins on line 2 lacks a bracket"),
        ('[{"q": 1},\n {"q": "x}]', r"the element that begins on line 2 lacks a bracket or a quote\. Replace the file"),
        ("[", r"the array does not end"),
        ('[{"q": 1}]\n\n{"q": 2}', r"rows\.json, line 3: '{\"q\": 2}' stands behind the end of the array"),
        ("{\n}", r"is one JSON object; an array of objects, or one object a line, is expected"),
    ],
)
def test_a_file_that_is_no_whole_array_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_all(path, tmp_path / "run")


def test_an_element_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MAX_ELEMENT", 1 << 12)
    path = tmp_path / "rows.json"
    path.write_text('[{"q": "' + "x" * (1 << 21))
    with pytest.raises(DataError, match="the array does not end"):
        list(array_entries(Source(str(path), "json")))


def test_a_format_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"q": 1}\n')
    with pytest.raises(DataError, match=r"is no JSON array: it begins with '{\"q\": 1}\\n'\. Correct data\.format"):
        read_all(path, tmp_path / "run", format="json")
    path.write_text('[{"q": 1}]\n')
    with pytest.raises(DataError, match=r"is one JSON array; data\.format jsonl is one object a line\. Remove data\.format"):
        read_all(path, tmp_path / "run", format="jsonl")


@pytest.mark.parametrize(
    ("text", "is_array"),
    [
        ('[\n{"q": 1}\n]\n', True),
        ('[{"q": 1},\n{"q": 2}]\n', True),
        ('[{"q": 1}]\n{"q": 2}\n', False),
        ('[{"q": 1\n{"q": 2}\n', False),  # a first line that is cut off, before good ones
        ("[1, 2]\n", False),
        ('{"q": 1}\n', False),
    ],
)
def test_a_file_of_lines_stays_one_unless_it_can_only_be_an_array(tmp_path: Path, text: str, is_array: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    [source] = scanned(tmp_path, path).sources
    assert source.source.format == ("json" if is_array else "jsonl")


def test_a_folder_with_both_kinds_of_json(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('[{"q": 1}]')
    (tmp_path / "in" / "b.json").write_text('{"q": 2}\n')
    (tmp_path / "in" / "c.jsonl").write_text('{"q": 3}\n')
    assert [row["q"] for row in columns(tmp_path / "in")] == [1, 2, 3]
    (tmp_path / "in" / "b.json").unlink()
    assert [row["q"] for row in columns(tmp_path / "in", format="json")] == [1]


def test_nothing_is_lost_where_pieces_part_strings_and_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    rows = [{"q": "".join(rng.choices('\\"[]{},a\n', k=rng.randrange(40)))} for _ in range(300)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    for piece in (1, 7, 64):
        monkeypatch.setattr(json_array, "_PIECE", piece)
        assert [entry.parse() for entry in array_entries(Source(str(path), "json"))] == rows
