"""A path must lead to something in the input: a name, or what lies below a column of objects."""

from pathlib import Path

import pyarrow as pa
import pytest
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data.column_paths import require_column

from ..support.input_scans import jsonl, scanned

TYPES = {
    "q": pa.string(),
    "meta": pa.struct([("temp", pa.float64()), ("deep", pa.struct([("id", pa.int64()), ("a.b", pa.struct([("c", pa.int64())]))]))]),
    "a.b": pa.struct([("c", pa.int64())]),
    "a": pa.struct([("z", pa.int64())]),
    "loose": None,
    "nothing": pa.null(),
}


@pytest.mark.parametrize(
    "path",
    ["q", "meta", "meta.temp", "meta.deep", "meta.deep.id", "meta.deep.a.b.c", "a.b", "a.b.c", "a.z", "loose.any.thing", "nothing.x"],
)
def test_a_path_that_leads_to_something_is_taken(path: str):
    require_column(TYPES, path, "option")
    require_column({}, path, "option")  # an empty dataset says nothing


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("meta.tmp", "option: no row has anything at 'meta.tmp'. Did you mean 'meta.temp'? There are: meta.temp, meta.deep, "),
        ("meta.deep.idd", "option: no row has anything at 'meta.deep.idd'. Did you mean 'meta.deep.id'? There are: meta.deep.id, "),
        ("q.x", "option: no row has anything at 'q.x'. The column q holds no objects."),
        ("a.c", "option: no row has anything at 'a.c'. Did you mean 'a.z'? There are: a.z."),
        ("other.x", "option: no row has a column 'other.x'."),
    ],
)
def test_a_path_that_leads_to_nothing_is_told_with_the_nearest(path: str, said: str):
    with pytest.raises(DataError) as raised:
        require_column(TYPES, path, "option")
    assert str(raised.value).startswith(said)


def test_names_alone_tell_only_of_the_first_level():
    require_column(["meta"], "meta.tmp", "option")
    with pytest.raises(DataError, match=r"no row has a column 'mata\.tmp'"):
        require_column(["meta"], "mata.tmp", "option")


def test_a_scan_knows_what_lies_below_its_columns(tmp_path: Path):
    path = jsonl(tmp_path / "rows.jsonl", [{"meta": {"temp": 1}, "mixed": {"a": 1}, "none": None}, {"meta": {"top": 2}, "mixed": [1]}])
    types = scanned(tmp_path, path).column_types
    for known in ("meta.temp", "meta.top", "mixed.whatever", "none.yet"):
        require_column(types, known, "option")
    with pytest.raises(DataError, match=r"Did you mean 'meta\.temp'"):
        require_column(types, "meta.tmp", "option")
    with pytest.raises(DataError, match=r"data\.key: no row has anything at 'meta\.id'"):
        scanned(tmp_path, path, key="meta.id")
