"""Tests the commit log: which commits are in force, and the effect of damage."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.store.commit_log import (
    Commit,
    PartFile,
    append_closing,
    append_commit,
    append_retry,
    append_void,
    mend_commits,
    read_commits,
)
from mlx_bulk.runner.store.paths import RunPaths, part_name, part_of

FIRST = Commit(0, 1, 4, 7, 1, "ab", 10, "cd", 5, (1, 2, 3), (4, 5, 6))
SECOND = Commit(1, 1, 4, 8, 0, "ef", 11, None, 0, (7, 8, 9), None)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A log of two commits and a closing line."""
    paths = RunPaths(tmp_path)
    append_commit(paths, FIRST)
    append_commit(paths, SECOND)
    append_closing(paths, 8, 15, 1)
    return paths


def test_appended_commits_are_read(paths: RunPaths):
    log = read_commits(paths)
    assert log.commits == {0: FIRST, 1: SECOND}
    assert log.generations == {0: 1, 1: 1}
    assert log.closing == {"complete": True, "rows": 8, "records": 15, "errors": 1}
    first = paths.commits.read_text().splitlines()[0]
    assert first.startswith('{"name":"part-00000000.arrow","shard":0,"generation":1,"rows":4,"records":7,"errors":1,"results_sha256":"ab"')


def test_a_later_generation_supersedes_and_reopens_the_run(paths: RunPaths):
    later = replace(FIRST, generation=2, errors=0, errors_sha256=None)
    append_commit(paths, later)
    append_commit(paths, FIRST)  # an earlier one never does
    assert read_commits(paths).commits[0] == later
    assert read_commits(paths).closing is None
    assert [path.name for path, _ in later.files(paths)] == ["part-00000000.g2.arrow"]


def test_a_void_line_takes_its_generation_back(paths: RunPaths):
    append_void(paths, FIRST, "is damaged")
    log = read_commits(paths)
    assert log.commits == {1: SECOND}
    assert (log.generations, log.closing) == ({0: 1, 1: 1}, None)


def test_a_retry_reopens_the_run_and_holds_for_each_shard_until_its_next_line(paths: RunPaths):
    append_retry(paths, 1, {1, 0})
    log = read_commits(paths)
    assert (log.retries, log.closing) == ({0: 1, 1: 1}, None)
    assert log.commits == {0: FIRST, 1: SECOND}
    append_retry(paths, 2, {1})
    append_commit(paths, replace(FIRST, generation=2))
    assert read_commits(paths).retries == {1: 2}
    append_void(paths, SECOND, "is damaged")
    assert read_commits(paths).retries == {}


def test_files_carry_what_was_committed(paths: RunPaths):
    assert list(FIRST.files(paths)) == [
        (paths.results_part(0, 1), PartFile("ab", 10, (1, 2, 3))),
        (paths.errors_part(0, 1), PartFile("cd", 5, (4, 5, 6))),
    ]
    assert Commit.of(0, 1, 4, (7, 1), *(file for _, file in FIRST.files(paths))) == FIRST
    assert Commit.of(1, 1, 4, (8, 0), PartFile("ef", 11, (7, 8, 9)), None) == SECOND


@pytest.mark.parametrize("number", range(3))
def test_damaged_lines_are_passed_over_by_readers_and_taken_out_by_the_writer(paths: RunPaths, number: int):
    lines = paths.commits.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"rows":', b'"rowz":')
    paths.commits.write_bytes(b"".join(lines))
    expected = {0: FIRST, 1: SECOND}
    expected.pop(number, None)
    assert read_commits(paths).commits == expected
    assert (read_commits(paths).closing is None) == (number == 2)
    assert paths.commits.read_bytes() == b"".join(lines)
    assert mend_commits(paths).commits == expected
    assert len(paths.commits.read_bytes().splitlines()) == 2


def test_a_log_that_is_being_written_can_be_read(paths: RunPaths):
    content = paths.commits.read_bytes()
    for length in range(0, len(content), 5):
        paths.commits.write_bytes(content[:length])
        log = read_commits(paths)
        assert log.closing is None
        assert log.commits == dict(list({0: FIRST, 1: SECOND}.items())[: content[:length].count(b"\n")])


@pytest.mark.parametrize(("shard", "generation", "name"), [(0, 1, "part-00000000.arrow"), (123456789, 12, "part-123456789.g12.arrow")])
def test_a_part_s_name_says_shard_and_generation(shard: int, generation: int, name: str):
    assert part_name(shard, generation) == name
    assert part_of(name) == (shard, generation)


@pytest.mark.parametrize("name", ["part-00000000.g1.arrow", "part-00000000.arrow.orphan", ".part-00000000.arrow.tmp", "part-0.arrow", "x"])
def test_files_with_other_names_are_no_parts(name: str):
    assert part_of(name) is None


def test_lines_of_an_earlier_version_have_no_stamps(tmp_path: Path):
    line = {name: value for name, value in asdict(SECOND).items() if not name.endswith("_stamp")}
    append_line(tmp_path / "commits.jsonl", {"name": "part-00000001.arrow", **line})
    assert read_commits(RunPaths(tmp_path)).commits == {1: replace(SECOND, results_stamp=None)}
