"""A row's key: what is refused, in which words."""

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.data.row_key import row_key
from mlx_bulk.runner.formats.entry import UnreadableError


@pytest.mark.parametrize(("value", "found"), [(5, "5"), (True, "true"), (["a"], '["a"]'), (None, "null or missing"), ("", "empty")])
def test_an_id_of_a_batch_file_is_a_string(value: object, found: str):
    with pytest.raises(UnreadableError) as refused:
        row_key({"custom_id": value}, DataConfig(path="x", format="openai"), 0)
    assert f"the key 'custom_id' is {found}; a string is expected" in str(refused.value)
