"""Tests that other programs read what ``mlx-bulk export`` writes."""

import json
from pathlib import Path

import polars as pl
import pytest
from datasets import load_dataset

from ..support.bench import Done, Record
from ..support.exported_runs import export, queried

SIDES = ("parquet", "jsonl")


def read_by(reader: str, kind: str, path: Path, cache: Path) -> list[Record]:
    """Reads the records of a file with a library."""
    match reader:
        case "polars":
            return (pl.read_parquet(path) if kind == "parquet" else pl.read_ndjson(path)).to_dicts()
        case "duckdb":
            return queried(f"from '{path}'").to_pylist()
        case _:
            name = "json" if kind == "jsonl" else kind
            return load_dataset(name, data_files=str(path), split="train", cache_dir=str(cache)).to_list()


@pytest.mark.parametrize("reader", ["datasets", "polars", "duckdb"])
@pytest.mark.parametrize("kind", SIDES)
def test_other_programs_read_the_exported_records(generated: Done, tmp_path: Path, kind: str, reader: str):
    path = tmp_path / f"out.{kind}"
    export(generated.output, kind, path)
    read = read_by(reader, kind, path, tmp_path)
    assert [(record["row"], record["sample"]) for record in read] == [(row, sample) for row in (0, 1, 2, 4, 5, 6) for sample in (0, 1)]
    exact = ("key", "input", "prompt", "completion", "prompt_ids", "completion_ids", "text_offset", "top_ids", "finish_reason", "seed")
    for found, stored in zip(read, generated.records, strict=True):
        assert {name: found[name] for name in exact} == {name: stored[name] for name in exact}
        assert found["logprobs"] == pytest.approx(stored["logprobs"], rel=1e-7)  # a float32 as nine digits of a float64
        assert found["prompt_logprobs"][0] is None


@pytest.mark.parametrize("reader", ["polars", "duckdb"])
def test_csv_is_read_with_nested_columns_as_json(generated: Done, tmp_path: Path, reader: str):
    result = export(generated.output, "csv", tmp_path / "out.csv")
    path = str(tmp_path / "out.csv")
    read = pl.read_csv(path).to_dicts() if reader == "polars" else queried(f"from read_csv('{path}')").to_pylist()
    for found, stored in zip(read, generated.records, strict=True):
        assert json.loads(found["completion_ids"]) == stored["completion_ids"]
        assert json.loads(found["input"]) == stored["input"]
        assert (found["row"], found["sample"], found["completion_tokens"]) == (stored["row"], stored["sample"], stored["completion_tokens"])
    assert [found["prompt"] for found in read][-2:] == ["'=1+1"] * 2
    assert "note: " in result.stderr
    assert "cells that a spreadsheet would run as formulas" in result.stderr


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("name", ["text", "choices"])
def test_scores_are_exported_too(scored: dict[str, Done], tmp_path: Path, name: str, kind: str):
    done = scored[name]
    export(done.output, kind, tmp_path / f"out.{kind}")
    read = queried(f"from '{tmp_path}/out.{kind}'")
    assert read.column_names == done.table.column_names
    assert read["row"].to_pylist() == [0, 1]
