"""Why rows failed, in few lines: like reasons are counted together, the most frequent come first."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from mlx_bulk.runner import reasons as module
from mlx_bulk.runner.commits import Commit, PartFile, append_commit
from mlx_bulk.runner.durable import sha256
from mlx_bulk.runner.parts import ERRORS_SCHEMA
from mlx_bulk.runner.paths import RunPaths
from mlx_bulk.runner.reasons import reasons

Failed = tuple[str, str]  # stage, message


def write_errors(root: Path, shards: Sequence[Sequence[Failed]]) -> Path:
    """A run directory with these failures, a row each."""
    paths = RunPaths(root)
    paths.errors.mkdir(parents=True)
    row = 0
    for shard, failures in enumerate(shards):
        numbers = range(row, row := row + len(failures))
        columns = {name: pa.nulls(len(failures), field.type) for name, field in zip(ERRORS_SCHEMA.names, ERRORS_SCHEMA, strict=True)}
        columns |= {"row": pa.array(numbers), "stage": pa.array([s for s, _ in failures]), "message": pa.array([m for _, m in failures])}
        errors_file = None
        if failures:
            with pa.ipc.new_file(str(paths.errors_part(shard, 1)), ERRORS_SCHEMA) as sink:
                sink.write_table(pa.table(columns, ERRORS_SCHEMA))
            errors_file = PartFile.at(part := paths.errors_part(shard, 1), sha256(part))
        append_commit(paths, Commit.of(shard, 1, len(failures), (0, len(failures)), PartFile("", 0, None), errors_file))
    return root


def test_like_reasons_are_counted_together_and_the_most_frequent_come_first(tmp_path: Path):
    def template(row: int) -> Failed:
        return "template", f"score.choices: 'q{row}' holds \"text {row}\";\nexpected a list (rows.jsonl, line {row + 1})"

    run = write_errors(tmp_path / "run", [[("read", "not JSON"), template(1)], [], [template(2), ("too_long", "97 ids"), template(4)]])
    assert reasons(run) == (
        "3 failed at template, the first in row 1: score.choices: 'q1' holds \"text 1\"; expected a list (rows.jsonl, line 2)",
        "1 failed at read, the first in row 0: not JSON",
        "1 failed at too_long, the first in row 3: 97 ids",
    )


def test_numbers_and_quotes_of_any_length_do_not_tell_reasons_apart(tmp_path: Path):
    long = [
        f"the row's column 'q' holds '{'x' * n}' and {10 ** min(n, 9)} where a list of strings is due, one a choice: give a list"
        for n in (1, 3, 200)
    ]
    run = write_errors(tmp_path / "run", [[("template", m) for m in (*long, "the row's column 'q' is empty")]])
    assert [line.split(",")[0] for line in reasons(run)] == ["3 failed at template", "1 failed at template"]


def test_reasons_beyond_three_are_counted(tmp_path: Path):
    run = write_errors(tmp_path / "run", [[(stage, "x") for stage in "aabbccdde"]])
    assert [line.split(",")[0] for line in reasons(run)] == [
        "2 failed at a",
        "2 failed at b",
        "2 failed at c",
        "3 failed for other reasons: errors/ has them all",
    ]


def test_a_long_message_is_cut(tmp_path: Path):
    (line,) = reasons(write_errors(tmp_path / "run", [[("read", "no" * 1000)]]))
    assert line == f"1 failed at read, the first in row 0: {'no' * 149}n…"


def test_messages_that_all_differ_take_no_more_memory_than_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_KINDS", 2)
    letters = "abcdef"
    run = write_errors(tmp_path / "run", [[("read", letter) for letter in letters], [("read", "b")]])
    assert reasons(run) == (
        "2 failed at read, the first in row 1: b",
        "1 failed at read, the first in row 0: a",
        "4 failed for other reasons: errors/ has them all",
    )


def test_no_more_than_some_failures_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_READ", 3)
    shards = [[("read", "a")] * 2] * 4
    assert reasons(write_errors(tmp_path / "run", shards)) == (
        "4 failed at read, the first in row 0: a",
        "these are the first 4 that failed: errors/ has them all",
    )
    monkeypatch.setattr(module, "_READ", 7)
    assert reasons(write_errors(tmp_path / "whole", shards)) == ("8 failed at read, the first in row 0: a",)


def test_no_failures_have_no_reasons(tmp_path: Path):
    assert reasons(write_errors(tmp_path / "run", [[]])) == ()
