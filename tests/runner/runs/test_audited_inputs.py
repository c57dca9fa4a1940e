"""Tests that an audit compares a run with its input: rows that were added, other rows, other keys, and an input that is gone."""

from pathlib import Path

from mlx_bulk.runner.files.checked_json import read_document, write_document
from mlx_bulk.runner.runs.audit import audit_run
from mlx_bulk.runner.store.paths import RunPaths

from ..support.audited_runs import describe, write_input, wrong
from ..support.audited_runs import run as run
from ..support.sessions import ROWS, work


def test_an_input_that_has_grown(run: Path):
    write_input(run, ROWS + 3)
    found = audit_run(run)
    assert (found.rows, found.input_rows, found.resolved) == (ROWS, ROWS + 3, ROWS)
    assert wrong(found) == ["data.path: the input has 13 rows now, the run covers 10; run the same command again: it does the new ones"]
    describe(run)
    found = audit_run(run)
    assert (found.rows, found.resolved, found.open_shards, found.problems) == (13, ROWS, [2, 3], [])


def test_an_input_that_is_another_or_gone(run: Path):
    source = run.parent / "rows.jsonl"
    source.write_text(source.read_text().replace("text 3", "TEXT 3"))
    assert "data.path: source 1 was " in wrong(audit_run(run))[0]
    source.unlink()
    found = audit_run(run)
    assert (found.input_rows, found.resolved, found.complete) == (None, ROWS, False)
    assert "rows.jsonl does not exist" in wrong(found)[0]
    assert wrong(found)[0].count("data.path: ") == 1


def test_records_of_another_rows_key(tmp_path: Path):
    """As an earlier version left them, that let a user adopt an input in another order."""
    path = tmp_path / "run"
    write_input(path)
    work(path)
    describe(path)
    run_json = read_document(RunPaths(path).run)
    run_json["config"]["data"]["key"] = "text"
    write_document(RunPaths(path).run, run_json)
    assert wrong(audit_run(path)) == [
        'data.path: row 0 of the input has the key "text 0", and what is recorded of it is of "k0"; start over with --overwrite: an input '
        "was adopted whose rows stood in other places"
    ]


def test_rows_that_the_input_does_not_have(run: Path):
    for rows, given in ((ROWS - 1, 1), (ROWS - 2, 0)):
        write_input(run, rows)
        describe(run)
        said = wrong(audit_run(run))
        assert [one.partition(";")[0] for one in said] == [f"commits.jsonl: shard 2 is committed with 2 rows, the input gives it {given}"]
