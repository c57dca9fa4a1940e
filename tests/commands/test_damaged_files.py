"""Tests small files of a run that are damaged between two starts: they are written again, or the start is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_bulk.runner.files.checked_json import read_document, write_document

from ..jobs.support.bench import Bench
from ..jobs.support.drifted_runs import bench as bench
from ..jobs.support.drifted_runs import made as made


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["summary.json", "stats.arrow", "inputs.json", "run.json"])
@pytest.mark.parametrize("damage", [flip, empty, Path.unlink])
def test_a_damaged_small_file_is_written_again(bench: Bench, name: str, damage: Callable[[Path], None]):
    path = bench.root / "run" / name
    before = path.read_bytes()
    damage(path)
    done = bench.run()
    if (name, damage) == ("run.json", Path.unlink):
        assert done.code == 5
        assert "has finished rows but no run.json to say whose" in done.last_line
        return
    assert done.code == 0
    assert "complete already: 5 of 5 rows" in done.last_line
    assert ("run.json: was damaged; it is rebuilt" in done.stderr) == (name == "run.json")
    if name == "stats.arrow":
        assert path.read_bytes() == before
    else:
        assert read_document(path).keys() == json.loads(before).keys() - {"check"}
    assert bench.run().code == 0


def test_a_damaged_run_json_is_not_rebuilt_from_another_config(bench: Bench):
    flip(bench.root / "run/run.json")
    done = bench.run(sampling={"seed": 1})
    assert done.code == 5
    assert "run.json: is damaged, and by sessions.jsonl this config, model or input is not what the run had" in done.last_line
    assert bench.run().code == 0


@pytest.mark.parametrize("name", ["sessions.jsonl", "metrics.jsonl"])
def test_damaged_notes_give_one_warning_and_stop_nothing(bench: Bench, name: str):
    flip(bench.root / "run" / name)
    done = bench.run()
    assert done.code == 0
    assert done.stderr.count("(their checksums do not fit) are taken out; the file as it was is " + name + ".damaged") == 1
    assert "taken out" not in bench.run().stderr


def test_a_summary_that_was_not_written_at_the_end_is_written_at_the_next_start(bench: Bench):
    """A kill between the last line of the commit log and the summary leaves the summary of the session before."""
    path = bench.root / "run/summary.json"
    whole = read_document(path)
    write_document(path, whole | {"complete": False, "rows": 3, "records": 3, "statistics": None})
    assert bench.run().code == 0
    same = ("complete", "rows", "of", "records", "errors", "statistics")
    assert {name: read_document(path)[name] for name in same} == {name: whole[name] for name in same}


def test_a_run_says_where_its_relative_paths_start(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(bench.root)
    assert bench.run("--overwrite", data={"path": "rows.jsonl"}).code == 0
    assert read_document(bench.root / "run/run.json")["cwd"] == str(bench.root)
