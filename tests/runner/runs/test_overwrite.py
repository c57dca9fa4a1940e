"""Tests which files of a run directory ``--overwrite`` removes, and which it leaves."""

import logging
from pathlib import Path

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.files.checked_json import read_document
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.commit_log import Commit, append_closing, append_commit

from ..support.run_dirs import OF_TEN, RUN, finish, tree
from ..support.run_dirs import finished as finished


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
