"""Tests which places a file may have that the user names: outside run directories, and free or a regular file."""

import json
import os
from pathlib import Path

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.runs.file_place import require_outside_runs, require_regular_files

MARKS = {
    "run.json": {"schema_version": 2, "identity": {}, "inputs": {}},
    "sweep.json": {"schema_version": 1, "cells": []},
    "inputs.json": {"version": 1, "sources": [], "schema": "", "check": ""},
}


@pytest.mark.parametrize("mark", MARKS)
def test_no_place_in_a_run_directory(tmp_path: Path, mark: str):
    run = tmp_path / "run"
    (run / "results").mkdir(parents=True)
    (run / mark).write_text(json.dumps(MARKS[mark]))
    (tmp_path / "inward").symlink_to(run / "results")
    (tmp_path / "link").symlink_to(run / "new")
    for to in (run, run / "new", run / "results/new", run / "missing/new", run / mark, tmp_path / "inward/new", tmp_path / "link"):
        with pytest.raises(ConfigError, match=f"^--to here: lies in the run directory {run}, which holds") as raised:
            require_outside_runs("--to here", [tmp_path / "free", to])
        assert raised.value.exit_code == 2


def test_folders_of_others_are_free(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"name": "mine"}')
    (tmp_path / "sweep.json").write_text("not JSON")
    require_outside_runs("--to here", [tmp_path / "new", tmp_path / "run.json", tmp_path / "missing/new"])


def test_only_regular_files_and_free_names(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("gone")
    require_regular_files("--to here", [tmp_path / name for name in ("file", "link", "dangling", "new")])
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(ConfigError, match=f"^--to here: {place} is there and is no regular file"):
            require_regular_files("--to here", [tmp_path / "file", place])
