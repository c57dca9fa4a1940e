"""Tests small JSON files: a read gives what was written, or an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.files.checked_json import digest, read_document, write_document

VALUES: dict[str, Any] = {"rows": 3, "name": "é 東京", "path": "odd \udcff byte", "nested": {"check": "0" * 16, "list": [1, None, 2.5]}}
JSON = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.integers())


@given(values=st.dictionaries(st.text().filter(lambda key: key != "check"), JSON))
def test_documents_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]):
    path = tmp_path_factory.mktemp("documents") / "run.json"
    write_document(path, values)
    assert read_document(path) == values
    assert list(json.loads(path.read_bytes()))[-1] == "check"


def test_a_person_can_read_them(tmp_path: Path):
    write_document(tmp_path / "run.json", {"rows": 3, "name": "é 東京"})
    first, second, third, last, _ = (tmp_path / "run.json").read_text(encoding="utf-8").splitlines()
    assert (first, second, third) == ("{", '  "rows": 3,', '  "name": "é 東京",')
    assert last.startswith('  "check": "')


@given(st.data())
def test_a_flipped_bit_or_a_missing_end_is_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    path = tmp_path_factory.mktemp("documents") / "run.json"
    write_document(path, VALUES)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_document(path)


def test_a_document_refuses_what_it_could_not_give_back(tmp_path: Path):
    for values in ({"check": 1}, {"loss": float("nan")}):
        with pytest.raises(ValueError, match=r"check|JSON"):
            write_document(tmp_path / "run.json", values)
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "run.json")


def test_a_digest_is_of_the_values_alone():
    assert digest({"a": {10: 1.0, 9: ("x",)}, "b": None}) == digest({"b": None, "a": {"9": ["x"], "10": 1.0}})
    assert digest({"a": 1}) != digest({"a": "1"})
