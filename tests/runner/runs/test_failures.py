"""Tests reasons of failures: like ones are counted together, and the most frequent come first."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from mlx_bulk.runner.files.file_stamp import sha256
from mlx_bulk.runner.runs import failures as module
from mlx_bulk.runner.runs.failures import error_reasons
from mlx_bulk.runner.store.commit_log import Commit, PartFile, append_commit
from mlx_bulk.runner.store.part_file import ERRORS_SCHEMA
from mlx_bulk.runner.store.paths import RunPaths

Failed = tuple[str, str, str]  # stage, class, message


def write_errors(root: Path, shards: Sequence[Sequence[Failed]]) -> Path:
    """A run directory with these failures, a row each."""
    paths = RunPaths(root)
    paths.errors.mkdir(parents=True)
    row = 0
    for shard, failures in enumerate(shards):
        numbers = range(row, row := row + len(failures))
        columns = {name: pa.nulls(len(failures), field.type) for name, field in zip(ERRORS_SCHEMA.names, ERRORS_SCHEMA, strict=True)}
        columns["row"] = pa.array(numbers)
        for name, values in zip(("stage", "error", "message"), zip(*failures, strict=True), strict=False):
            columns[name] = pa.array(values)
        errors_file = None
        if failures:
            with pa.ipc.new_file(str(paths.errors_part(shard, 1)), ERRORS_SCHEMA) as sink:
                sink.write_table(pa.table(columns, ERRORS_SCHEMA))
            errors_file = PartFile.at(part := paths.errors_part(shard, 1), sha256(part))
        append_commit(paths, Commit.of(shard, 1, len(failures), (0, len(failures)), PartFile("", 0, None), errors_file))
    return root


def test_like_reasons_are_counted_together_and_the_most_frequent_come_first(tmp_path: Path):
    def template(row: int) -> Failed:
        return "template", "RowError", f"score.choices: 'q{row}' holds \"text {row}\";\nexpected a list (rows.jsonl, line {row + 1})"

    shards = [[("read", "ParseError", "not JSON"), template(1)], [], [template(2), ("too_long", "TooLong", "97 ids"), template(4)]]
    assert error_reasons(write_errors(tmp_path / "run", shards)) == (
        "3 failed at template, the first in row 1: score.choices: 'q1' holds \"text 1\"; expected a list (rows.jsonl, line 2)",
        "1 failed at read, the first in row 0: not JSON",
        "1 failed at too_long, the first in row 3: 97 ids",
    )


def test_messages_do_not_tell_reasons_apart_but_stages_and_classes_do(tmp_path: Path):
    read = [("read", "UnreadableRow", f"{what} at column 1") for what in ("not JSON", "a list", "no text", "text", "a number", "NaN", "x")]
    late = [("template", "RowError", m) for m in ("null: q.", "no list: choices.")] + [("template", "TemplateError", "no filter")]
    assert error_reasons(write_errors(tmp_path / "run", [[*late, *read]])) == (
        "7 failed at read, the first in row 3: not JSON at column 1",
        "2 failed at template, the first in row 0: null: q.",
        "1 failed at template, the first in row 2: no filter",
    )


def test_reasons_beyond_three_are_counted(tmp_path: Path):
    run = write_errors(tmp_path / "run", [[(stage, "E", "x") for stage in "aabbccdde"]])
    assert [line.split(",")[0] for line in error_reasons(run)] == [
        "2 failed at a",
        "2 failed at b",
        "2 failed at c",
        "3 failed for other reasons: errors/ has them all",
    ]


def test_a_long_message_is_cut(tmp_path: Path):
    (line,) = error_reasons(write_errors(tmp_path / "run", [[("read", "E", "no" * 1000)]]))
    assert line == f"1 failed at read, the first in row 0: {'no' * 149}n…"


def test_no_more_than_some_failures_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MAX_COUNTED", 3)
    shards = [[("read", "E", "a")] * 2] * 4
    assert error_reasons(write_errors(tmp_path / "run", shards)) == (
        "4 failed at read, the first in row 0: a",
        "these are the first 4 that failed: errors/ has them all",
    )
    monkeypatch.setattr(module, "_MAX_COUNTED", 7)
    assert error_reasons(write_errors(tmp_path / "whole", shards)) == ("8 failed at read, the first in row 0: a",)


def test_no_failures_have_no_reasons(tmp_path: Path):
    assert error_reasons(write_errors(tmp_path / "run", [[]])) == ()
