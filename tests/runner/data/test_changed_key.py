"""Tests that a finished row is known again by its key."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.data.row_key import ChangedKey, changed_key

SCHEMA = pa.schema([("row", pa.int64()), ("key", pa.string())])


def results() -> Iterator[pa.RecordBatch]:
    """Row 2 has two samples, row 1 nothing."""
    yield pa.record_batch({"row": [2, 2, 0], "key": ["c", "c", "a"]}, schema=SCHEMA)
    yield pa.record_batch({"row": [], "key": []}, schema=SCHEMA)


def errors() -> Iterator[pa.RecordBatch]:
    """Row 0 has a failure without a key, row 4 one of each kind."""
    yield pa.record_batch({"row": [0, 4, 4], "key": [None, None, "e"]}, schema=SCHEMA)
    yield pa.record_batch({"row": [3], "key": ["d"]}, schema=SCHEMA)


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        (["a", "b", "c", "d", "e", "f"], None),
        (["a", "other", "c"], None),
        (["a", "b", "d", "c"], ChangedKey(2, "c", False, "d")),
        (["b", "a", "c", "d"], ChangedKey(0, "a", False, "b")),
        (["a", "b", "c", None], ChangedKey(3, "d", True, None, "no key")),
        (["a", "b", "c", "d", "a"], ChangedKey(4, "e", True, "a")),
    ],
    ids=["more rows", "where nothing is finished", "another order", "another first row", "a row that cannot be read", "a failed row"],
)
def test_the_first_row_with_another_key_is_found(keys: list[str | None], changed: ChangedKey | None):
    rows = [BadRow(n, "no key", "") if key is None else Row(n, key, {}) for n, key in enumerate(keys)]
    assert changed_key(results, errors, rows) == changed


def test_any_row_may_come_where_nothing_is_finished():
    assert changed_key(lambda: iter(()), lambda: iter(()), [Row(0, "a", {})]) is None
