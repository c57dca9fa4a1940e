"""Tests parts that the log does not declare: whole ones of this run are adopted, others set aside, none removed."""

import logging
from pathlib import Path

import pytest
from mlx_bulk.runner.core.errors import DriftError
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.paths import RunPaths

from ..support.sessions import FAILING, PER_SHARD, ROWS, SCHEMA, Place, check, content, flip, forks, kills, opened, orphans, work

Parts = dict[tuple[str, int], str]
NONE: frozenset[Place] = frozenset()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The parts of a run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    work(path)
    return content(path)


def without_line(path: Path, number: int) -> None:
    """Damages a line of the log, counted from 0."""
    log = path / "commits.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    flip(log, offset=sum(map(len, lines[:number])) + 20)


def test_parts_are_adopted_when_the_log_is_lost(tmp_path: Path, whole: Parts, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    (path / "commits.jsonl").unlink()
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert work(path) == []
    assert caplog.text.count("no line of commits.jsonl declares it, but it is whole and this run's: adopted") == 3
    check(path)
    assert content(path) == whole
    assert orphans(path) == []


@pytest.mark.parametrize("number", range(4))
def test_a_damaged_line_is_made_again_from_its_part(tmp_path: Path, whole: Parts, number: int, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    without_line(path, number)
    damaged = (path / "commits.jsonl").read_bytes()
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert work(path) == []
    assert "1 damaged lines" in caplog.text
    assert (path / "commits.jsonl.damaged").read_bytes() == damaged
    check(path)
    assert content(path) == whole
    caplog.clear()
    work(path)
    assert caplog.text == ""


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_a_damaged_line_of_a_later_generation_is_made_again(tmp_path: Path, number: int):
    """After a retry the log has three commits, the closing line, two commits of generation 2, and a closing line."""
    path = tmp_path / "run"
    work(path)
    work(path, retry=True, failing=NONE)
    before = content(path)
    without_line(path, number)
    assert work(path, failing=NONE) == []
    check(path, failing=NONE)
    assert content(path) == before
    assert read_commits(RunPaths(path)).generations == {0: 2, 1: 2, 2: 1}


@pytest.mark.parametrize("part", ["results/part-00000001.arrow", "errors/part-00000001.arrow"])
@pytest.mark.parametrize("how", ["flipped", "missing", "another's"])
def test_a_part_that_does_not_validate_is_set_aside(tmp_path: Path, whole: Parts, part: str, how: str):
    path = tmp_path / "run"
    work(path)
    if how == "flipped":
        flip(path / part)
    elif how == "missing":
        (path / part).unlink()
    else:
        (path / part).write_bytes((path / part.replace("1.arrow", "0.arrow")).read_bytes())
    left = sorted(file.read_bytes() for file in path.glob("*/part-00000001.arrow"))
    without_line(path, [line.get("shard") for line in lines(path)].index(1))
    assert [row for row, _ in work(path)] == [4, 4, 5, 5, 6, 6, 7, 7]
    check(path)
    assert content(path) == whole
    assert sorted((path / name).read_bytes() for name in orphans(path)) == left


def lines(path: Path) -> list[dict[str, object]]:
    from mlx_bulk.runner.files.checked_lines import read_lines

    return read_lines(path / "commits.jsonl")


def test_parts_of_another_run_are_not_adopted(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    with opened(path) as run:
        run.recover(Layout(ROWS, PER_SHARD), SCHEMA)
    other = tmp_path / "other"
    work(other)
    for file in sorted(other.glob("*/part-*")):
        (path / file.relative_to(other)).write_bytes(file.read_bytes())
    with opened(path) as run:
        run.identity = "cd34"
        assert run.recover(Layout(ROWS, PER_SHARD), SCHEMA).committed == frozenset()
    assert len(orphans(path)) == len(whole)


def test_parts_alone_bind_a_run_to_whose_they_are(tmp_path: Path):
    """A log that is lost does not let another config take the parts over."""
    described = {"identity": {"sampling.seed": 0}, "inputs": {"limit": None, "sources": []}, "config": {}}
    with RunDir.open(tmp_path / "run") as run:
        run.bind(described)
        run.errors_part(0, 2).write_bytes(b"")
    with RunDir.open(tmp_path / "run") as run, pytest.raises(DriftError, match=r"sampling\.seed: the run has 0, the config now says 1"):
        run.bind({**described, "identity": {"sampling.seed": 1}})


def test_results_and_errors_of_two_attempts_are_not_taken_together(tmp_path: Path, whole: Parts):
    """Each part is whole and this run's, with the same counts; but the errors are another attempt's."""
    path, other = tmp_path / "run", tmp_path / "other"
    work(path)
    work(other, failing=FAILING - {(6, 1)} | {(6, 0)})
    (path / "errors/part-00000001.arrow").write_bytes((other / "errors/part-00000001.arrow").read_bytes())
    (path / "commits.jsonl").unlink()
    assert [row for row, _ in work(path)] == [4, 4, 5, 5, 6, 6, 7, 7]
    check(path)
    assert content(path) == whole


def test_a_part_of_fewer_rows_than_the_shard_now_has_is_adopted_and_extended(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path, rows=6)
    (path / "commits.jsonl").unlink()
    assert [row for row, _ in work(path)] == [6, 6, 7, 7, 8, 8, 9, 9]
    check(path)
    assert content(path) == whole


def test_a_part_of_more_rows_than_the_shard_now_has_is_set_aside(tmp_path: Path):
    path = tmp_path / "run"
    work(path)
    (path / "commits.jsonl").unlink()
    assert [row for row, _ in work(path, rows=9)] == [8, 8]
    check(path, rows=9)
    assert orphans(path) == ["results/part-00000002.arrow.orphan"]


def test_parts_of_one_name_are_set_aside_under_several_names(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    for _ in range(3):
        work(path)
        flip(path / "results/part-00000002.arrow")
        (path / "commits.jsonl").unlink()
    work(path)
    check(path)
    assert content(path) == whole
    assert orphans(path) == [f"results/part-00000002.arrow.orphan{number}" for number in ("", ".2", ".3")]


def test_a_reopened_shard_whose_line_is_lost_keeps_base_and_journal(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path, rows=6)
    did = work(path, stop_after=3)
    (path / "commits.jsonl").unlink()
    assert not set(did) & set(work(path))
    check(path)
    assert content(path) == whole


@pytest.mark.slow
@forks
def test_killed_between_any_two_steps_of_adoption(tmp_path: Path, whole: Parts):
    def lost(path: Path) -> None:
        work(path)
        flip(path / "results/part-00000000.arrow")
        (path / "commits.jsonl").unlink()

    for path in kills(tmp_path, lost, lambda path: work(path, shuffle=5), least=15, stride=2):
        work(path, shuffle=6)
        check(path)
        assert content(path) == whole
        assert orphans(path) == ["errors/part-00000000.arrow.orphan", "results/part-00000000.arrow.orphan"]


def test_files_that_are_not_ours_stay(tmp_path: Path):
    path = tmp_path / "run"
    work(path)
    for name in ("results/notes.arrow", "results/part-1.arrow", "errors/part-00000000.parquet", "journal/notes"):
        (path / name).write_text("mine")
    work(path)
    assert (path / "results/notes.arrow").read_text() == (path / "results/part-1.arrow").read_text() == "mine"
    assert (path / "errors/part-00000000.parquet").read_text() == (path / "journal/notes").read_text() == "mine"
