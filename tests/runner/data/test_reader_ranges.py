"""Only wanted rows are read. Other rows are skipped, and whole sources and row groups are not opened."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.data import reader
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import scan
from mlx_bulk.runner.data.scan_result import Scan
from mlx_bulk.runner.formats import table_formats


def test_skipped_rows_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text('{"c": 0}\n' * 10)
    config = DataConfig(path=str(tmp_path / "rows.jsonl"))
    found = scan(config, tmp_path)
    parsed: list[str] = []
    decode = json.JSONDecoder.decode
    monkeypatch.setattr(json.JSONDecoder, "decode", lambda self, text: (parsed.append(text), decode(self, text))[1])
    assert [row.position for row in read_rows(found, config, [range(9, 10)])] == [9]
    assert len(parsed) == 1


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """Writes sources of all formats with 30 rows each, an empty one, blank and bad lines, and a table of many row groups."""
    folder = tmp_path_factory.mktemp("mixed")
    lines = [json.dumps({"c": n}) if n % 7 else "no row" for n in range(30)]
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf\n" + "".join(f"{line}\n" + " \n\n" * (n % 3) for n, line in enumerate(lines)).encode())
    (folder / "b.csv").write_text("c,d\n" + "".join(f'{n},"x\ny"\n' + "\n" * (n % 2) + ("bad\n" if n == 3 else "") for n in range(29)))
    pq.write_table(pa.table({"c": range(30)}), folder / "c.parquet", row_group_size=7)
    with pa.ipc.new_file(str(folder / "d.arrow"), pa.schema([("c", pa.int64())])) as writer:
        writer.write_table(pa.table({"c": range(30)}), max_chunksize=4)
    (folder / "e.jsonl").write_text("\n")
    (folder / "f.txt").write_text("".join(f"{n}\n\n" for n in range(30)))
    found = scan(DataConfig(path=str(folder)), folder / "run")
    assert [one.rows for one in found.sources] == [30, 30, 30, 30, 0, 30]
    return found


def _ranges(cuts: list[int]) -> list[range]:
    ordered = sorted(cuts)
    return [range(a, b) for a, b in zip(ordered[::2], ordered[1::2], strict=False)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 150), max_size=10).map(_ranges), st.integers(1, 5))
def test_wanted_rows_are_the_same_as_in_a_full_read(
    mixed: Scan, monkeypatch: pytest.MonkeyPatch, wanted: list[range], batch_rows: int
) -> None:
    monkeypatch.setattr(table_formats, "BATCH_ROWS", batch_rows)
    config = DataConfig.model_validate(mixed.config)
    positions = [position for span in wanted for position in span]
    every = list(read_rows(mixed, config, [range(150)]))
    assert [row.position for row in every] == list(range(150))
    found = list(read_rows(mixed, config, wanted))
    assert found == [every[position] for position in positions]
    assert [row.place if isinstance(row, Row) else row.message for row in found] == [
        row.place if isinstance(row, Row) else row.message for row in (every[position] for position in positions)
    ]


def test_sources_of_which_no_row_is_wanted_are_not_opened(mixed: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    walk = reader.entries
    monkeypatch.setattr(reader, "entries", lambda source, *more: (opened.append(Path(source.path).name), walk(source, *more))[1])
    list(read_rows(mixed, DataConfig.model_validate(mixed.config), [range(35, 40), range(59, 61)]))
    assert opened == ["b.csv", "c.parquet"]


def test_row_groups_before_the_first_row_wanted_are_not_read(mixed: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    read_groups: list[range] = []
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda file, **of: (read_groups.append(of["row_groups"]), batches(file, **of))[1])
    (row,) = read_rows(mixed, DataConfig.model_validate(mixed.config), [range(60 + 14, 60 + 15)])
    assert (row.columns if isinstance(row, Row) else None) == {"c": 14}
    assert read_groups == [range(2, 5)]
