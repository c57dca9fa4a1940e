"""Tests inputs in the real command: files of every format, folders, stdin, hub datasets."""

import gzip
import json
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlx_bulk.runner.store import open_journals
from mlx_bulk.runner.store.arrow_builder import record_bytes

from ..jobs.support.bench import Bench
from ..jobs.support.finished_runs import prompts, session


def test_inputs_of_many_files(bench: Bench):
    folder = bench.root / "in"
    folder.mkdir()
    for name in ("b", "a", "c"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"q": name}) + "\n")
    ways: list[tuple[Any, list[str]]] = [
        (str(folder), ["a", "b", "c"]),
        (str(folder / "[ab].jsonl"), ["a", "b"]),
        ([str(folder / "c.jsonl"), str(folder / "a.jsonl")], ["c", "a"]),
    ]
    for path, expected in ways:
        assert prompts(bench.run("--overwrite", data={"path": path})) == expected


def test_stdin_is_spooled_and_not_read_again(bench: Bench):
    rows = '{"q": "one"}\n{"q": "two"}\n'
    done = bench.run("--data", "-", stdin=rows)
    assert (done.code, prompts(done)) == (0, ["one", "two"])
    assert (done.output / "stdin.jsonl").read_text() == rows
    again = bench.run("--data", "-", stdin="")
    assert again.last_line.startswith("complete already: 2 of 2 rows")
    assert prompts(
        bench.run("--data", "-", "--overwrite", "--set", "data.format=text", "--set", "prompt.text='{{ text }}'", stdin="a\nb\n")
    ) == ["a", "b"]


def test_other_rows_in_stdin_are_refused_and_more_of_them_extend(bench: Bench):
    rows = '{"q": "one"}\n{"q": "two"}\n'
    assert bench.run("--data", "-", stdin='{"q": 1}\n{"x"', prompt={"text": "{{ nothing }}"}).code == 5
    assert bench.run("--data", "-", stdin=rows).code == 0  # nothing was finished: the fixed pipe is read
    refused = bench.run("--data", "-", stdin='{"q": "other"}\n')
    assert refused.code == 4
    assert "stdin brings other rows than those the run began with" in refused.last_line
    assert prompts(bench.run("--data", "-", stdin=rows + '{"q": "three"}\n')) == ["one", "two", "three"]
    assert prompts(bench.run("--data", "-", stdin="")) == ["one", "two", "three"]


def test_rows_that_change_the_columns_are_refused_by_name(bench: Bench):
    assert bench.run(rows=[{"q": "a"}]).code == 0
    refused = bench.run(rows=[{"q": "a"}, {"q": "b", "extra": 1}])
    assert refused.code == 4
    assert '  column input.extra: the run has nothing, the input now gives "int64"' in refused.stderr.splitlines()
    assert "data.keep" in refused.stderr


def test_short_runs_leave_a_line_of_metrics_and_their_settings(bench: Bench):
    done = bench.run()
    [line] = [json.loads(text) for text in (done.output / "metrics.jsonl").read_text().splitlines()]
    assert (line["rows"], line["errors"], line["generated_tokens"]) == (5, 0, 30)
    settings_noted = session(done)["settings"]
    assert settings_noted["output.fsync_seconds"] == 5
    assert "sampling.max_tokens" not in settings_noted  # that one is part of the run's identity


def test_the_last_line_of_metrics_counts_rows_that_wait_for_a_slow_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def slow(record: dict[str, Any]) -> int:
        sleep(0.05)
        return record_bytes(record)

    monkeypatch.setattr(open_journals, "record_bytes", slow)
    [line] = [json.loads(text) for text in (bench.run().output / "metrics.jsonl").read_text().splitlines()]
    assert (line["rows"], line["errors"]) == (5, 0)


def test_formats(bench: Bench):
    table = pa.table({"q": ["x", "yy"]})
    pq.write_table(table, bench.root / "t.parquet")
    with pa.ipc.new_file(str(bench.root / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    (bench.root / "t.csv").write_text("q\nx\nyy\n")
    (bench.root / "t.jsonl.gz").write_bytes(gzip.compress(b'{"q": "x"}\n{"q": "yy"}\n'))
    (bench.root / "t.dat").write_text("q\nx\nyy\n")
    for name in ("t.parquet", "t.arrow", "t.csv", "t.jsonl.gz"):
        assert prompts(bench.run("--overwrite", data={"path": str(bench.root / name)})) == ["x", "yy"]
    unknown = bench.run("--overwrite", data={"path": str(bench.root / "t.dat")})
    assert unknown.code == 5
    assert "Set data.format to one of arrow, csv, json, jsonl, parquet, text" in unknown.stderr
    assert prompts(bench.run("--overwrite", data={"path": str(bench.root / "t.dat"), "format": "csv"})) == ["x", "yy"]


@pytest.mark.slow
def test_a_hub_dataset(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(bench.root / "cache"))
    folder = bench.root / "hub"
    folder.mkdir()
    for name in ("small-train", "small-test", "large-train"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"q": name}) + "\n")
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: small\n  default: true\n  data_files:\n"
        "  - {split: train, path: small-train.jsonl}\n  - {split: test, path: small-test.jsonl}\n"
        "- config_name: large\n  data_files:\n  - {split: train, path: large-train.jsonl}\n---\n"
    )
    path = f"hf:{folder}"
    assert prompts(bench.run(data={"path": path})) == ["small-train"]
    assert prompts(bench.run("--overwrite", data={"path": path, "split": "test"})) == ["small-test"]
    assert prompts(bench.run("--overwrite", data={"path": path, "config": "large"})) == ["large-train"]
