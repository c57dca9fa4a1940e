"""Tests the audit of made-up runs: complete, open, extended, retried, at work, and damaged in each of their files."""

import shutil
from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.files.checked_json import write_document
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.runs import audit as audit_module
from mlx_bulk.runner.runs.audit import audit_run
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.runs.run_files import SCHEMA_VERSION
from mlx_bulk.runner.runs.shard_audit import ShardCount
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import Commit, append_commit, append_retry, read_commits
from mlx_bulk.runner.store.journal import Header
from mlx_bulk.runner.store.part_file import check_part, read_part, write_part
from mlx_bulk.runner.store.paths import RunPaths

from ..support.audited_runs import describe, write_input, wrong
from ..support.audited_runs import run as run
from ..support.sessions import FAILING, ROWS, SAMPLES, flip, opened, work


def test_a_complete_run(run: Path):
    found = audit_run(run)
    assert found.complete
    assert (found.rows, found.input_rows, found.resolved, found.records) == (ROWS, ROWS, ROWS, 17)
    assert dict(found.errors) == {("generate", "RowError"): len(FAILING)}
    assert (found.files, found.open_shards, found.journaled, found.problems) == (5, [], 0, [])
    assert found.bytes == sum(file.stat().st_size for file in run.glob("*/*.arrow"))


def test_an_open_run(tmp_path: Path):
    path = tmp_path / "run"
    write_input(path)
    done = len(work(path, stop_after=13))
    describe(path)
    found = audit_run(path)
    log = read_commits(RunPaths(path))
    assert (found.closed, found.complete, found.problems) == (False, False, [])
    assert found.open_shards == sorted(set(range(3)) - set(log.commits))
    assert found.records + found.errors.total() + found.journaled == done
    assert found.resolved == sum(commit.rows for commit in log.commits.values())


def test_an_empty_run(tmp_path: Path):
    path = tmp_path / "run"
    write_input(path, 0)
    work(path, 0)
    describe(path)
    assert audit_run(path).complete


def test_a_run_that_is_reopened_is_not_complete(run: Path):
    """A retry that was broken off: the log still ends with its closing line."""
    with opened(run) as directory:
        journal.begin(directory.journal_of(1), Header(1, 2, 1, retry=1))
    found = audit_run(run)
    assert (found.closed, found.complete, found.open_shards, found.problems) == (True, False, [1], [])
    work(run)
    assert audit_run(run).complete


def test_a_run_whose_errors_are_to_be_done_again_is_not_complete(run: Path):
    """A retry that was broken off before its first shard was reopened."""
    append_retry(RunPaths(run), 1, {0, 1})
    (run / "journal/00000002").touch()  # whose creation was cut short
    found = audit_run(run)
    assert (found.closed, found.complete, found.open_shards, found.problems) == (False, False, [0, 1], [])
    work(run)
    assert audit_run(run).complete


def test_a_journal_that_is_overtaken_does_not_count(run: Path):
    with opened(run) as directory:
        journal.begin(directory.journal_of(1), Header(1, 1))
    assert audit_run(run).complete


@pytest.mark.parametrize("folder", ["results", "errors"])
def test_a_damaged_part(run: Path, folder: str):
    part, cure = run / folder / "part-00000001.arrow", "run the same command again: it does shard 1 again"
    flip(part)
    found = audit_run(run)
    assert wrong(found) == [f"{part.name}: is damaged: its sha256 is not the one committed; {cure}"]
    assert (found.complete, found.open_shards, found.resolved) == (False, [1], 6)
    part.unlink()
    assert wrong(audit_run(run)) == [f"{part.name}: is missing; {cure}"]
    work(run)
    assert audit_run(run).complete


def test_parts_whose_columns_have_another_order(run: Path):
    """As an earlier version left them, where the input's columns came in another order."""
    paths = RunPaths(run)
    commit = read_commits(paths).commits[1]
    (part, file), *errors = commit.files(paths)
    turned = [batch.select(batch.schema.names[::-1]) for batch in read_part(part)]
    declared, _ = check_part(part) or (None, None)
    assert declared is not None
    file = write_part(part, turned[0].schema, turned, declared)
    counts = (commit.records, commit.errors)
    append_commit(paths, Commit.of(1, commit.generation, commit.rows, counts, file, errors[0][1] if errors else None))
    assert wrong(audit_run(run)) == [
        f"{part.name}: has other columns than the first part, or in another order; remove this file, and run the same command again: "
        "it does shard 1 again"
    ]


def test_damaged_lines_of_the_log(run: Path):
    flip(run / "commits.jsonl", 30)
    said = wrong(audit_run(run))
    assert said[0] == "commits.jsonl: the checksums of 1 lines do not fit (lines 1); run the same command again: they are set aside"
    assert said[1].endswith("no commit declares it; run the same command again: it adopts the file, or takes it away")
    work(run)
    assert audit_run(run).complete


def test_a_torn_journal(tmp_path: Path):
    path = tmp_path / "run"
    write_input(path)
    work(path, stop_after=5)
    describe(path)
    torn = sorted(path.glob("journal/*"))[0]
    before = torn.read_bytes()[:-9]
    torn.write_bytes(before)
    said = wrong(audit_run(path))
    assert [one for one in said if one.startswith(torn.name)] == said
    assert "bytes behind its last whole frame are torn or damaged; run the same command again: it does their rows again" in said[0]
    assert torn.read_bytes() == before  # nothing is mended here
    torn.write_bytes(b"")
    assert torn.name in wrong(audit_run(path))[0]


def test_files_that_nobody_declared(run: Path):
    shutil.copy(run / "results/part-00000000.arrow", run / "results/part-00000007.arrow")
    shutil.copy(run / "results/part-00000000.arrow", run / "results/mine.arrow")
    assert wrong(audit_run(run)) == [
        "mine.arrow: is not the run's; move it elsewhere: who reads the folder reads it too",
        "part-00000007.arrow: no commit declares it; run the same command again: it adopts the file, or takes it away",
    ]


def test_a_part_that_a_run_at_work_declares_in_a_moment(run: Path, monkeypatch: pytest.MonkeyPatch):
    part, away = run / "results/part-00000007.arrow", run.parent / "away"
    shutil.copy(run / "results/part-00000000.arrow", part)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            part.rename(away)

    monkeypatch.setattr(audit_module.time, "sleep", sleep)
    with RunDir.open(run):
        assert audit_run(run).complete
        assert slept == [*audit_module.PAUSES[:2]]
        away.rename(part)
        found = audit_run(run)
        assert wrong(found)[0].startswith("part-00000007.arrow: no commit declares it")
        assert found.working.startswith("process ")
    slept.clear()
    assert not audit_run(run).complete
    assert not slept
    assert audit_run(run).working == ""


def test_a_closing_line_that_does_not_agree(run: Path):
    append_line(run / "commits.jsonl", {"complete": True, "rows": ROWS, "records": 16, "errors": 2})
    assert "its closing line says 10 rows, 16 records, 2 errors; there are 10 rows, 17 records, 2 errors" in wrong(audit_run(run))[0]


def test_notes_that_are_damaged(run: Path):
    for name in ("inputs.json", "summary.json"):
        write_document(run / name, {"stats_sha256": "00" * 32})
        flip(run / name)
    for name in ("sessions.jsonl", "metrics.jsonl"):
        append_line(run / name, {"a": 1})
        flip(run / name, 2)
    assert [one.partition(":")[0] for one in wrong(audit_run(run))] == ["summary.json", "inputs.json", "sessions.jsonl", "metrics.jsonl"]


def test_statistics_that_are_damaged(run: Path):
    write_document(run / "summary.json", {"stats_sha256": "00" * 32})
    assert wrong(audit_run(run)) == ["stats.arrow: is missing; run the same command again: it is written anew"]
    (run / "stats.arrow").write_bytes(b"ARROW1")
    assert "stats.arrow: is damaged: its sha256 is not the one in summary.json" in wrong(audit_run(run))[0]


def test_a_part_that_is_replaced_while_it_is_counted(run: Path, monkeypatch: pytest.MonkeyPatch):
    """The run is at work: it retries the errors between the reading of the log and the reading of the parts."""
    real, counted = audit_module.count_shard, list[int]()

    def count(paths: RunPaths, commit: Commit, start: int, samples: int | None) -> ShardCount:
        if not counted:
            work(run, retry=True, failing=frozenset())
        counted.append(start)
        return real(paths, commit, start, samples)

    monkeypatch.setattr(audit_module, "count_shard", count)
    found = audit_run(run)
    assert counted == [0, 0, 4, 4, 8]
    assert (found.complete, found.records, found.errors.total()) == (True, ROWS * SAMPLES, 0)


def test_rows_may_differ_in_their_samples(run: Path):
    append_line(run / "sessions.jsonl", {"event": "adopted", "key": "sampling.n", "old": 3, "new": 2})
    assert audit_run(run).complete


@pytest.mark.parametrize("what", ["missing", "no run", "damaged", "of another version"])
def test_without_a_description_there_is_nothing_to_hold_it_against(run: Path, what: str):
    if what == "missing":
        shutil.rmtree(run)
    elif what == "no run":
        (run / "run.json").unlink()
    elif what == "damaged":
        flip(run / "run.json")
    else:
        write_document(run / "run.json", {"schema_version": 99})
    said = {
        "missing": "there is no such folder",
        "no run": "it holds no run.json",
        "damaged": "is damaged: its checksum does not fit",
        "of another version": f"has schema version 99, this mlx-bulk reads {SCHEMA_VERSION}",
    }
    with pytest.raises(RunDirError, match=said[what]):
        audit_run(run)
