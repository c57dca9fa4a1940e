"""Tests the ownership of a folder: strangers, identity, adopted changes, mended damage, overwriting."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.core.errors import DriftError, RunDirError
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.files.checked_json import digest, read_document, write_document
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.runs.run_dir import RunDir

from ..support.run_dirs import INPUTS, LONGER, OF_TEN, OTHER, RUN, SOURCE, finish, tree
from ..support.run_dirs import finished as finished


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path):
    with RunDir.open(tmp_path / "deep" / "run") as run:
        run.bind(RUN)
        assert read_document(run.run) == {"schema_version": 2, **RUN}
        assert run.recover(Layout(0, 4), pa.schema([])).committed == frozenset()


def test_a_start_that_a_power_cut_ended_while_it_made_its_folders_is_continued(tmp_path: Path):
    for name in ("results", "errors", "journal"):
        (tmp_path / name).mkdir()
    (tmp_path / ".lock").touch()
    with RunDir.open(tmp_path) as run:
        run.bind(RUN)
        assert read_document(run.run) == {"schema_version": 2, **RUN}


def test_the_same_run_binds_again_and_again(finished: Path):
    before = (finished / "run.json").read_bytes()
    with RunDir.open(finished) as run:
        run.bind({**RUN, "config": {"not": "compared"}})
    assert (finished / "run.json").read_bytes() == before


def test_drift_is_refused_with_a_line_a_difference_and_the_ways_out(finished: Path):
    before = (finished / "run.json").read_bytes()
    with RunDir.open(finished) as run, pytest.raises(DriftError) as caught:
        run.bind({**RUN, "identity": {"sampling.temperature": 0.7, "sampling.seed": 0}, "inputs": {**INPUTS, "limit": 3}})
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


def test_other_changes_are_still_refused(finished: Path):
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


def test_an_unknown_key_is_named_before_the_run_starts(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        with pytest.raises(ConfigError, match=r"--adopt sampling\.sed: .* did you mean sampling\.seed"):
            run.bind(RUN, ("sampling.sed",))
        assert not run.run.exists()
        run.bind(RUN, ("sampling.seed",))


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


def test_policies_of_a_start_that_recorded_nothing_are_dropped_and_others_kept(tmp_path: Path):
    path = tmp_path / "run"
    kept = path / "policies" / "12-0123456789ab" / "policy.json"
    for committed in (False, True):
        with RunDir.open(path) as run:
            run.bind(RUN)
            assert kept.exists() == committed
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text("{}")
            (path / "policies" / "notes.txt").write_text("mine")
            if not committed:
                run.bind(RUN)
                assert sorted(file.name for file in (path / "policies").iterdir()) == ["notes.txt"]
                kept.parent.mkdir()
                kept.write_text("{}")
        finish(path, shards=1)


def test_a_run_over_no_rows_makes_room_for_any_other(tmp_path: Path):
    nothing = {**RUN, "inputs": {**INPUTS, "sources": [{**SOURCE, "rows": 0}]}, "nonce": "first"}
    with RunDir.open(tmp_path / "run") as run:
        run.bind(nothing)
        run.commits.write_bytes(b"")
        run.bind(nothing)
    with RunDir.open(tmp_path / "run") as run:
        other = {**RUN, "identity": {"sampling.temperature": 0.5, "column input.q": "string"}, "nonce": "second"}
        run.bind(other)
        assert read_document(run.run) == {"schema_version": 2, **other}
        assert not run.commits.exists()
    with RunDir.open(tmp_path / "run") as run:
        run.commits.write_bytes(b"")
        with pytest.raises(DriftError):
            run.bind({**other, "identity": {"sampling.temperature": 0.7, "column input.q": "string"}})


@pytest.mark.parametrize("kept", ["results/part-00000000.arrow", "errors/part-00000000.arrow", "journal/00000000"])
def test_no_part_and_no_journal_is_ever_removed_for_another_run(tmp_path: Path, kept: str):
    nothing = {**RUN, "inputs": {**INPUTS, "sources": []}}
    with RunDir.open(tmp_path / "run") as run:
        run.bind(nothing)
        run.commits.write_bytes(b"")
        (run.root / kept).write_bytes(b"rows")
        with pytest.raises(DriftError):
            run.bind({**nothing, "identity": {"sampling.temperature": 0.5, "sampling.seed": 0}})
        assert (run.root / kept).read_bytes() == b"rows"


def test_a_run_keeps_its_nonce_and_another_in_its_place_has_its_own(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        for nonce in ("first", "second"):  # nothing is finished yet
            run.bind({**RUN, "nonce": nonce})
            assert run.nonce == read_document(run.run)["nonce"] == "first"
        run.journal_of(0).touch()
        run.bind({**RUN, "nonce": "third", "cwd": "/there"})
        assert run.nonce == read_document(run.run)["nonce"] == "first"
        run.replace({**RUN, "nonce": "fourth"})
        assert run.nonce == read_document(run.run)["nonce"] == "fourth"


def test_a_run_of_a_version_without_nonces_goes_on_without_one(finished: Path):
    with RunDir.open(finished) as run:
        run.bind({**RUN, "nonce": "new", "cwd": "/there"})
        assert (run.nonce, read_document(run.run)) == ("", {"schema_version": 2, **RUN, "cwd": "/there"})
        run.replace({**RUN, "nonce": "new"})
        assert read_document(run.run)["nonce"] == "new"
