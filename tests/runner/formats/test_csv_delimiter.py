"""The character between the cells of a CSV: set, or found out from the first lines; a comma stays one."""

import gzip
import logging
from pathlib import Path

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.data.scan import scan

from ..support.read_inputs import read_all


def columns(path: Path, delimiter: str | None = None) -> list[dict[str, object]]:
    return [row.columns for row in read_all(path, path.parent / "run", delimiter=delimiter) if isinstance(row, Row)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a;b\n1,5;x\n2,5;y\n", {"a": "1,5", "b": "x"}),
        ('"a, b";c\n"1; 2";x\n', {"a, b": "1; 2", "c": "x"}),
        ("a\tb\n1\tx\n", {"a": "1", "b": "x"}),
        ("a|b|c\n1|2|3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a;b\n", None),
        ('a;b\n"long\ntext";x\n', {"a": "long\ntext", "b": "x"}),
        # A comma divides the header and fits rows, or nothing else divides all rows alike.
        ("a,b\n1;2,x\n", {"a": "1;2", "b": "x"}),
        ("a;b,c\n1,x\n", {"a;b": "1", "c": "x"}),
        ("text\none; two\nthree\n", {"text": "one; two"}),
        ("question; or not\none; two; three\nfour\n", {"question; or not": "one; two; three"}),
    ],
)
def test_the_delimiter_is_found_out(tmp_path: Path, text: str, first: dict[str, object] | None) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    assert columns(path)[:1] == ([] if first is None else [first])
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert columns(tmp_path / "rows.csv.gz") == columns(path)


def test_it_is_said_and_can_be_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "rows.csv"
    path.write_text("a;b\n1;2\n")
    assert columns(path) == [{"a": "1", "b": "2"}]
    said = f"{path}: ';' stands between the cells, by its first lines. data.delimiter sets another."
    assert [record.message for record in caplog.records] == [said]
    assert columns(path, ",") == [{"a;b": "1;2"}]
    (tmp_path / "rows.tsv").write_text("a,b\n1,2\n")
    assert columns(tmp_path / "rows.tsv", ",") == [{"a": "1", "b": "2"}]
    path.write_text("a:b\n1:2\n")
    assert columns(path, ":") == [{"a": "1", "b": "2"}]
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"data\.delimiter: found ';', but .*rows\.jsonl is read as jsonl, not as csv\. Remove it"):
        columns(tmp_path / "rows.jsonl", ";")


def test_the_delimiter_is_part_of_how_the_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a;b\n1;2\n")
    formats = {
        delimiter: scan(DataConfig(path=str(path), delimiter=delimiter), tmp_path / "run").fingerprint()["sources"][0]["format"]
        for delimiter in (None, ",", "\t", ";")
    }
    assert formats == {None: "csv with ;", ",": "csv", "\t": "tsv", ";": "csv with ;"}


@pytest.mark.parametrize(("written", "meant"), [("tab", "\t"), ("\\t", "\t"), ("\t", "\t"), (";", ";")])
def test_a_tab_can_be_written_out(written: str, meant: str) -> None:
    assert DataConfig(path="a.csv", delimiter=written).delimiter == meant
