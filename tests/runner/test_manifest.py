"""Whose folder it is: strangers, identity, what is adopted, what damage is mended, overwriting."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner import journal
from mlx_bulk.runner.commits import Commit, append_closing, append_commit
from mlx_bulk.runner.documents import digest, read_document, write_document
from mlx_bulk.runner.durable import read_lines
from mlx_bulk.runner.errors import DriftError, RunDirError
from mlx_bulk.runner.journal import Header
from mlx_bulk.runner.manifest import RunDir

SOURCE: dict[str, Any] = {"path": "a", "format": "jsonl", "codec": None, "bytes": 8, "sha256": "ab", "rows": 4, "appendable": False}
INPUTS: dict[str, Any] = {"limit": None, "sources": [SOURCE]}
LONGER: dict[str, Any] = {**INPUTS, "sources": [SOURCE, {**SOURCE, "path": "b", "bytes": 2, "sha256": "cd", "rows": 1}]}
OTHER: dict[str, Any] = {**INPUTS, "sources": [{**SOURCE, "sha256": "ef"}]}
RUN: dict[str, Any] = {"identity": {"sampling.temperature": 1.0, "sampling.seed": 0}, "inputs": INPUTS, "config": {"any": "thing"}}

OF_TEN: dict[str, Any] = {**RUN, "identity": {"batch.rows_per_shard": 4}, "inputs": {**INPUTS, "sources": [{**SOURCE, "rows": 10}]}}


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(item.relative_to(path)): item.read_bytes() if item.is_file() else None for item in path.rglob("*")}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run directory with one of everything."""
    path = tmp_path / "run"
    with RunDir.open(path) as run:
        run.bind(RUN)
        run.session({"host": "here"})
        run.add_metrics({"rows": 1})
        run.write_summary({"rows": 1})
        for file in (
            run.inputs,
            run.commits,
            run.stats,
            run.root / "report.html",
            run.results_part(0, 1),
            run.errors_part(0, 1),
            run.journal_of(1),
        ):
            file.write_bytes(b"")
        (run.root / "stdin.jsonl").write_bytes(b"{}\n")
        (run.results / "part-00000001.arrow.orphan").write_bytes(b"")
        (run.results / ".part-00000001.arrow.tmp").write_bytes(b"")
    return path


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path):
    with RunDir.open(tmp_path / "deep" / "run") as run:
        run.bind(RUN)
        assert read_document(run.run) == {"schema_version": 2, **RUN}
        assert run.recover(0, 4, pa.schema([])).committed == frozenset()


def test_a_start_that_a_power_cut_ended_while_it_made_its_folders_is_continued(tmp_path: Path):
    for name in ("results", "errors", "journal"):
        (tmp_path / name).mkdir()
    (tmp_path / ".lock").touch()
    RunDir.open(tmp_path).close()


def test_the_same_run_binds_again_and_again(finished: Path):
    before = (finished / "run.json").read_bytes()
    with RunDir.open(finished) as run:
        run.bind({**RUN, "config": {"not": "compared"}})
    assert (finished / "run.json").read_bytes() == before


def test_drift_is_refused_with_a_line_a_difference_and_the_ways_out(finished: Path):
    before = (finished / "run.json").read_bytes()
    with RunDir.open(finished) as run, pytest.raises(DriftError) as caught:
        run.bind({"identity": {"sampling.temperature": 0.7, "sampling.seed": 0}, "inputs": {**INPUTS, "limit": 3}})
    assert str(caught.value) == (
        f"{finished}: this run was started with something else:\n"
        "  sampling.temperature: the run has 1.0, the config now says 0.7\n"
        "  data.limit: the run covers 4 rows, the config now says 3\n"
        "Go back to what the run has, choose another --output, or start over with --overwrite (this removes the run's results)."
    )  # no --adopt: rows that are done cannot be left out
    assert caught.value.exit_code == 4
    assert (finished / "run.json").read_bytes() == before


def test_an_extension_is_stored_and_cannot_be_taken_back(finished: Path):
    with RunDir.open(finished) as run:
        run.bind({**RUN, "inputs": LONGER})
        assert read_document(run.run)["inputs"] == LONGER
        assert read_lines(run.sessions)[-1]["event"] == "extended"
        with pytest.raises(DriftError, match="source 2, b, is gone"):
            run.bind(RUN)


def test_a_renamed_input_is_the_same_and_stored_by_its_new_name(finished: Path):
    moved = {**INPUTS, "sources": [{**SOURCE, "path": "elsewhere"}]}
    with RunDir.open(finished) as run:
        run.bind({**RUN, "inputs": moved, "cwd": "/here"})
        assert read_document(run.run)["inputs"] == moved
        run.bind({**RUN, "inputs": moved, "cwd": "/there"})
        assert read_document(run.run)["cwd"] == "/there"
        assert [line["event"] for line in read_lines(run.sessions)] == ["start"]


@pytest.mark.parametrize("content", [{"schema_version": 1, **RUN}, {"schema_version": 1, **RUN, "identity": {}}])
def test_a_run_of_an_older_version_is_refused(finished: Path, content: dict[str, Any]):
    (finished / "run.json").write_text(json.dumps(content, indent=2))
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match="schema version 1, this mlx-bulk reads 2"):
        run.bind(RUN)


def test_a_run_of_a_newer_version_is_refused(finished: Path):
    write_document(finished / "run.json", {"schema_version": 99, **RUN})
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match="schema version 99"):
        run.bind(RUN)


# ---------------------------------------------------------------------------------------------------------------- adopt


def test_an_adopted_change_is_stored_noted_and_holds_from_then_on(finished: Path, caplog: pytest.LogCaptureFixture):
    cooler = {**RUN, "identity": {"sampling.temperature": 0.7, "sampling.seed": 0}}
    with RunDir.open(finished) as run:
        with pytest.raises(DriftError, match=r"where you vouch .*, --adopt sampling\.temperature goes on"):
            run.bind(cooler)
        with caplog.at_level(logging.WARNING, "mlx_bulk"):
            run.bind(cooler, ("sampling.temperature",))
        assert caplog.messages == [f"{finished}: adopted: sampling.temperature: the run has 1.0, the config now says 0.7"]
        noted = read_lines(run.sessions)[-1]
        assert (noted["event"], noted["key"]) == ("adopted", "sampling.temperature")
        assert (noted["old"], noted["new"]) == ({"sampling.temperature": 1.0}, {"sampling.temperature": 0.7})
        assert run.identity == digest(cooler["identity"]) == noted["identity"]
        before = tree(finished)
        run.bind(cooler, ("sampling.temperature", "sampling.seed"))  # the same command again: nothing is left to adopt
        run.bind(cooler)
        assert tree(finished) == before
        with pytest.raises(DriftError, match=r"the run has 0\.7"):
            run.bind(RUN)


def test_what_is_not_adopted_is_still_refused(finished: Path):
    before = tree(finished)
    with RunDir.open(finished) as run, pytest.raises(DriftError) as caught:
        run.bind({**RUN, "identity": {"sampling.temperature": 0.7, "sampling.seed": 1}}, ("sampling.temperature",))
    assert "sampling.temperature" not in str(caught.value)
    assert "--adopt sampling.seed goes on" in str(caught.value)
    assert tree(finished).items() - before.items() <= {(".lock", (finished / ".lock").read_bytes())}


def test_another_input_is_adopted_as_a_whole(finished: Path):
    with RunDir.open(finished) as run:
        with pytest.raises(DriftError, match=r"--adopt data\.path goes on"):
            run.bind({**RUN, "inputs": OTHER})
        run.bind({**RUN, "inputs": OTHER}, ("data.path",))
        assert read_document(run.run)["inputs"] == OTHER
        noted = read_lines(run.sessions)[-1]
        assert (noted["key"], noted["old"], noted["new"]) == ("data.path", {"data.path": INPUTS}, {"data.path": OTHER})
        run.bind({**RUN, "inputs": OTHER}, ("data.path",))
        assert read_lines(run.sessions)[-1] == noted


def test_a_key_that_is_none_is_named_before_anything_is_bound(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        with pytest.raises(ConfigError, match=r"--adopt sampling\.sed: .* did you mean sampling\.seed"):
            run.bind(RUN, ("sampling.sed",))
        assert not run.run.exists()
        run.bind(RUN, ("sampling.seed",))


# --------------------------------------------------------------------------------------------------------------- damage


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("broken", [damage, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{}")])
def test_a_damaged_run_json_is_rebuilt_where_sessions_show_the_same_run(
    finished: Path, broken: Callable[[Path], None], caplog: pytest.LogCaptureFixture
):
    broken(finished / "run.json")
    with RunDir.open(finished) as run, caplog.at_level(logging.WARNING, "mlx_bulk"):
        run.bind(RUN)
        assert read_document(run.run) == {"schema_version": 2, **RUN}
    assert caplog.messages == [f"{finished}/run.json: was damaged; it is rebuilt, as sessions.jsonl shows that this is the same run"]


@pytest.mark.parametrize("other", [{"identity": {"sampling.temperature": 0.7}}, {"inputs": OTHER}, {"inputs": LONGER}])
def test_a_damaged_run_json_binds_no_other_run(finished: Path, other: dict[str, Any]):
    damage(finished / "run.json")
    with RunDir.open(finished) as run:
        with pytest.raises(RunDirError, match=r"run\.json: is damaged, and by sessions\.jsonl this config, model or input is not what"):
            run.bind({**RUN, **other})
        run.bind(RUN)


def test_a_damaged_run_json_is_rebuilt_as_it_was_extended_and_adopted_last(finished: Path):
    last = {**RUN, "identity": {"sampling.temperature": 0.7, "sampling.seed": 0}, "inputs": LONGER}
    with RunDir.open(finished) as run:
        run.bind(last, ("sampling.temperature",))
        damage(run.run)
        with pytest.raises(RunDirError, match="is damaged"):
            run.bind(RUN)
        run.bind(last)


def test_a_damaged_run_json_with_nothing_that_says_whose_is_refused_until_overwritten(finished: Path):
    damage(finished / "run.json")
    (finished / "sessions.jsonl").unlink()
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match="nothing there says what run this is"):
        run.bind(RUN)
    with RunDir.open(finished) as run:
        run.replace(RUN)
        assert read_document(run.run)["identity"] == RUN["identity"]


def test_a_damaged_run_json_of_a_run_without_work_is_written_again(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        run.bind(RUN)
        damage(run.run)
        run.bind(RUN)
        assert read_document(run.run)["identity"] == RUN["identity"]


def test_damaged_notes_stop_no_run(finished: Path):
    for name in ("sessions.jsonl", "metrics.jsonl"):
        damage(finished / name)
    with RunDir.open(finished) as run:
        run.bind(RUN)
        run.add_metrics({"rows": 2})
        assert [line["rows"] for line in read_lines(run.metrics)] == [2]
    assert {"sessions.jsonl.damaged", "metrics.jsonl.damaged"} <= tree(finished).keys()


def test_a_damaged_summary_is_none(finished: Path):
    with RunDir.open(finished) as run:
        assert run.stored_summary() == {"rows": 1}
        damage(run.summary)
        assert run.stored_summary() is None
        run.summary.unlink()
        assert run.stored_summary() is None


def test_results_without_run_json_are_not_adopted(finished: Path):
    (finished / "run.json").unlink()
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match=r"no run\.json"):
        run.bind(RUN)


@pytest.mark.parametrize("name", ["thesis.tex", "run.json", ".hidden", "results/part-00000000.arrow", "commits.jsonl"])
def test_a_folder_that_is_no_run_is_refused_and_untouched(tmp_path: Path, name: str):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"years": 4}')
    before = tree(tmp_path)
    with pytest.raises(RunDirError, match=r"is not an mlx-bulk run, it holds .*Choose another --output"):
        RunDir.open(tmp_path / "mine")
    assert tree(tmp_path) == before


def test_a_file_in_place_of_the_folder_is_one_clear_line(tmp_path: Path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirError, match="is a file; expected a folder"):
        RunDir.open(tmp_path / "run")


def test_a_file_in_place_of_a_folder_in_the_run_is_named(finished: Path):
    (finished / "journal/00000001").unlink()
    (finished / "journal").rmdir()
    (finished / "journal").touch()
    with pytest.raises(RunDirError, match=r"run/journal: is a file; expected a folder"):
        RunDir.open(finished)
    (finished / "journal").unlink()
    RunDir.open(finished).close()  # the lock was given back


def test_a_start_cut_short_before_run_json_can_be_continued(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        run.inputs.write_text("{}")
    with RunDir.open(tmp_path / "run") as run:
        run.bind(RUN)
        assert run.run.exists()


def test_overwrite_removes_what_is_ours_and_nothing_else(finished: Path):
    mine = {"notes.txt", "results/notes.txt", "stdin_questions.jsonl", "stdin.jsonl.bak", "stdin.md"}
    for name in mine:
        (finished / name).write_text("mine")
    for name in (".run.json.tmp", ".summary.json.tmp", "sessions.jsonl.damaged", "commits.jsonl.damaged", "stdin.csv", ".stdin.csv.tmp"):
        (finished / name).write_text("left by a killed process, or set aside")
    (finished / "stdin.txt.new").write_text("just piped in")
    with RunDir.open(finished) as run:
        run.replace({**RUN, "identity": {}})
        assert set(tree(finished)) == {".lock", "run.json", "results", "errors", "journal", "stdin.txt.new"} | mine
        assert read_document(run.run)["identity"] == {}


def test_overwrite_removes_nothing_for_a_key_that_cannot_be_adopted(finished: Path):
    before = {name: content for name, content in tree(finished).items() if name != ".lock"}
    with RunDir.open(finished) as run, pytest.raises(ConfigError, match=r"--adopt sampling\.sed"):
        run.replace(RUN, ("sampling.sed",))
    assert {name: content for name, content in tree(finished).items() if name != ".lock"} == before


def finish(path: Path, *, shards: int, row: int | None = None) -> None:
    """Shards of four rows are committed, and, where ``row`` is given, this one is in a journal."""
    with RunDir.open(path) as run:
        for shard in range(shards):
            append_commit(run, Commit(shard, 1, 4, 4, 0, "ab", 10, None, 0))
        if row is not None:
            journal.begin(run.journal_of(row // 4), Header(row // 4, 1))
            journal.append(run.journal_of(row // 4), journal.RESULTS, pa.RecordBatch.from_pydict({"row": [row]}))


def test_overwriting_a_run_that_is_not_complete_says_what_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    finish(tmp_path, shards=2, row=9)
    with RunDir.open(tmp_path) as run, caplog.at_level(logging.INFO, "mlx_bulk"):
        run.replace(OF_TEN)
        said = f"{tmp_path}: --overwrite removes a run that is not complete, with 8 committed rows and 1 open shards"
        assert caplog.messages == [said]
        append_commit(run, Commit(0, 1, 4, 4, 0, "ab", 10, None, 0))
        append_closing(run, 4, 4, 0)
        run.replace(OF_TEN)
        assert caplog.messages == [said]


@pytest.mark.parametrize(
    ("rows", "shards", "row", "said"),
    [
        (4, 2, None, r"commits\.jsonl: shard 1 is committed with 4 rows, the input now gives it 0"),
        (7, 2, None, r"commits\.jsonl: shard 1 is committed with 4 rows, the input now gives it 3"),
        (4, 1, 9, r"journal/00000002: holds finished rows that the input, now of 4 rows, does not have"),
        (9, 1, 9, r"journal/00000002: holds finished rows that the input, now of 9 rows, does not have"),
    ],
)
def test_a_shorter_input_that_finished_rows_do_not_fit_is_refused_before_anything_changes(
    tmp_path: Path, rows: int, shards: int, row: int | None, said: str
):
    shorter = {**OF_TEN, "inputs": {**INPUTS, "sources": [{**SOURCE, "sha256": "ef", "rows": rows}]}}
    with RunDir.open(tmp_path) as run:
        run.bind(OF_TEN)
    finish(tmp_path, shards=shards, row=row)
    with RunDir.open(tmp_path) as run:
        before = tree(tmp_path)
        with pytest.raises(DriftError, match=said):
            run.bind(shorter, ("data.path",))
        assert tree(tmp_path) == before


def test_a_shorter_input_that_all_finished_rows_fit_can_be_adopted(tmp_path: Path):
    shorter = {**OF_TEN, "inputs": {**INPUTS, "sources": [{**SOURCE, "sha256": "ef", "rows": 9}]}}
    with RunDir.open(tmp_path) as run:
        run.bind(OF_TEN)
    finish(tmp_path, shards=2, row=8)
    with RunDir.open(tmp_path) as run:
        run.bind(shorter, ("data.path",))
        assert read_document(run.run)["inputs"] == shorter["inputs"]


def test_sessions_metrics_and_summary(finished: Path):
    with (finished / "sessions.jsonl").open("ab") as file:
        file.write(b'{"torn')
    with RunDir.open(finished) as run:
        run.session_ended({"exit": 0})
        first, last = read_lines(run.sessions)
        assert (first["event"], first["host"], last["event"], last["exit"]) == ("start", "here", "end", 0)
        assert read_lines(run.metrics)[0]["rows"] == 1
        assert run.stored_summary() == {"rows": 1}
