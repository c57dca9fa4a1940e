"""A row's key: what is refused, in which words."""

from pathlib import Path

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.data.row_key import row_key
from mlx_bulk.runner.formats.entry import UnreadableError

from ..support.input_scans import jsonl, scanned


@pytest.mark.parametrize(("value", "found"), [(5, "5"), (True, "true"), (["a"], '["a"]'), (None, "null or missing"), ("", "empty")])
def test_an_id_of_a_batch_file_is_a_string(value: object, found: str):
    with pytest.raises(UnreadableError) as refused:
        row_key({"custom_id": value}, DataConfig(path="x", format="openai"), 0)
    assert f"the key 'custom_id' is {found}; a string is expected" in str(refused.value)


@pytest.mark.parametrize(
    ("value", "found"), [(True, "true"), (False, "false"), (None, "null or missing"), (["a"], "a list"), ({"a": 1}, "a dict")]
)
def test_a_key_of_the_users_own_is_a_string_or_a_number(value: object, found: str):
    with pytest.raises(UnreadableError) as refused:
        row_key({"id": value}, DataConfig(path="x", key="id"), 0)
    assert f"the key 'id' is {found}; a string or a number is expected" in str(refused.value)
    assert [row_key({"id": key}, DataConfig(path="x", key="id"), 0) for key in ("a", 0, 1, 0.5)] == ["a", "0", "1", "0.5"]


def test_rows_with_booleans_for_keys_are_rows_with_errors(tmp_path: Path):
    path = jsonl(tmp_path / "rows.jsonl", [{"id": True}, {"id": True}, {"id": 1}])
    assert (scanned(tmp_path, path, key="id").rows, scanned(tmp_path, path, key="id").bad) == (3, 2)
