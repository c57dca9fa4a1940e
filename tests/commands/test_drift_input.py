"""Tests which changes of the input between two starts of a run are taken, and which are refused."""

import errno
import os
import shutil
from typing import Any

import pytest
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.runs.run_dir import RunDir

from ..jobs.support.bench import ROWS, Bench, Record
from ..jobs.support.drifted_runs import bench as bench
from ..jobs.support.drifted_runs import kept, refused
from ..jobs.support.drifted_runs import made as made


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([*ROWS[:4], {**ROWS[4], "q": "Exeunt."}], id="changed"),
        pytest.param([ROWS[1], ROWS[0], *ROWS[2:]], id="reordered"),
        pytest.param(ROWS[:4], id="truncated"),
        pytest.param([{"id": "new", "q": "first"}, *ROWS], id="put before"),
    ],
)
def test_another_input_is_refused(bench: Bench, rows: list[Record]):
    before = kept(bench)
    (line,) = refused(bench, bench.run(rows=rows), before, "data.path")
    assert line.startswith("data.path: source 1 was ")


def test_an_input_without_rows_is_refused(bench: Bench):
    done = bench.run(rows=[])
    assert done.code == 4
    assert "  data.path: source 1 was " in done.stderr


def test_an_input_that_grew_extends_the_run_and_one_that_moved_is_the_same(bench: Bench):
    assert "complete already" in bench.run(data={"path": str((bench.root / "rows.jsonl").rename(bench.root / "moved.jsonl"))}).last_line
    extended = bench.run(rows=[*ROWS, {"id": "f", "q": "more"}])
    assert (extended.code, len(extended.records)) == (0, 6)
    assert "the input gave 5 rows and gives 6 now; the run is extended" in extended.stderr
    assert [line["event"] for line in read_lines(extended.output / "sessions.jsonl")] == ["start", "end", "extended", "start", "end"]


def test_a_limit_below_the_rows_of_a_complete_run_finds_it_complete(bench: Bench):
    records = kept(bench)["part-00000000.arrow"]
    for limit in ("3", "5", "1"):
        done = bench.run("--limit", limit)
        assert (done.code, done.last_line.startswith("complete already: 5 of 5 rows")) == (0, True), done.stderr
    assert "the run has done 5 rows; with data.limit 1 it is complete" in done.stderr
    assert kept(bench)["part-00000000.arrow"] == records
    grown = bench.run("--limit", "2", rows=[*ROWS, {"id": "f", "q": "more"}])  # neither a lower limit nor new rows bring work
    assert (grown.code, len(grown.records)) == (0, 5)
    assert len(bench.run().records) == 6


def test_a_limit_below_the_rows_of_an_unfinished_run_is_refused(bench: Bench):
    (bench.root / "run/commits.jsonl").write_text("".join((bench.root / "run/commits.jsonl").read_text().splitlines(keepends=True)[:-1]))
    before = kept(bench)
    done = bench.run("--limit", "3")
    assert (done.code, kept(bench)) == (4, before)
    assert "  data.limit: the run covers 5 rows, the config now says 3\n" in done.stderr


def test_equal_bytes_read_as_another_format_are_refused(bench: Bench):
    """Without kept columns nothing but the format tells JSON lines from text."""
    (bench.root / "same.txt").write_text('{"text": "a"}\n')
    section = {"path": str(shutil.copy(bench.root / "same.txt", bench.root / "same.jsonl")), "keep": "none"}
    prompt = {"text": "{{ text }}"}
    assert bench.run("--overwrite", data=section, prompt=prompt).code == 0
    before = kept(bench)
    (line,) = refused(bench, bench.run(data=section | {"path": str(bench.root / "same.txt")}, prompt=prompt), before, "data.path")
    assert "same.jsonl (jsonl, 1 rows" in line
    assert "same.txt (text, 1 rows" in line


def test_rows_from_stdin_stay_the_runs_though_the_commits_are_lost(bench: Bench):
    assert bench.run("--data", "-", "--overwrite", stdin='{"q": "one"}\n').code == 0
    (bench.root / "run/commits.jsonl").unlink()
    assert bench.run("--data", "-", stdin='{"q": "other"}\n').code == 4
    assert (bench.root / "run/stdin.jsonl").read_text() == '{"q": "one"}\n'
    assert [record["prompt"] for record in bench.run("--data", "-", stdin="").records] == ["one"]


def test_rows_from_stdin_that_are_refused_leave_those_the_run_has(bench: Bench):
    first, kept_rows = '{"q": "one"}\n', bench.root / "run/stdin.jsonl"
    assert bench.run("--data", "-", "--overwrite", stdin=first).code == 0
    done = bench.run("--data", "-", stdin=first + '{"q": "two", "extra": 1}\n')
    assert (done.code, "column input.extra" in done.stderr) == (4, True)
    assert [file.name for file in kept_rows.parent.glob("*stdin*")] == [kept_rows.name]
    assert kept_rows.read_text() == first
    kept_rows.with_name("stdin.jsonl.new").write_text("left by a process that was killed")
    assert bench.run("--data", "-", stdin="").last_line.startswith("complete already: 1 of 1 row")
    assert [file.name for file in kept_rows.parent.glob("*stdin*")] == [kept_rows.name]


def test_rows_from_stdin_are_stored_before_the_run_records_them(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    first, longer = '{"q": "one"}\n', '{"q": "one"}\n{"q": "two"}\n'
    assert bench.run("--data", "-", "--overwrite", stdin=first).code == 0
    owner: Any = RunDir

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as during:
        during.setattr(owner, "_store", fails)
        assert bench.run("--data", "-", stdin=longer).code == 6
    assert [record["prompt"] for record in bench.run("--data", "-", stdin="").records] == ["one", "two"]


def test_a_kept_column_of_another_type_is_refused_by_name(bench: Bench):
    before = kept(bench)
    done = bench.run(rows=[*ROWS, {"id": 6, "q": "an id that is a number"}])
    assert done.code == 4
    assert "  column input.id: the run has " in done.stderr
    assert ", the input now gives " in done.stderr
    assert "--adopt" not in done.stderr
    assert kept(bench) == before
