"""Tests kills at named points, each followed by the same command: the bytes are those of an unbroken run.

A run dies once in each of its phases. With MLX_BULK_FAULTS=all there is also a run for each point, which dies there twice.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from .children import Children
from .points import ADOPTING, BINDING, COMMITTING, EXTENDING, JOURNALLING, OVERWRITING, READING, RETRYING, SCORING, SUMMARISING, THEN, Point
from .tiny_runs import ROWS, THOROUGH, TinyRun, lines, parts

Parts = dict[str, bytes]
SOUND = f"complete and sound: {ROWS} rows, each once, "

NAMED = {
    point.name: point for point in (*READING, *BINDING, *JOURNALLING, *COMMITTING, *SUMMARISING, *EXTENDING, *RETRYING, *ADOPTING, *SCORING)
}
FAILING = Point("failing rows", ("mlx_bulk.jobs.generate.generate:GenerateJob.requests",), r" (2|6|7|16)$", action="fail", again=True)


def deaths(*phases: Sequence[Point]) -> pytest.MarkDecorator:
    """Where runs die: the first in the first point of each phase, the second in the second, and so on. All but the first are slow."""
    sequences = [[point for point in points if point is not None] for points in zip_longest(*phases)]
    if THOROUGH:
        sequences += [[point, NAMED[THEN.get(point.name, point.name)]] for points in phases for point in points]
    cases = [
        pytest.param(points, id=", then ".join(point.name for point in points), marks=pytest.mark.slow if number else ())
        for number, points in enumerate(sequences)
    ]
    return pytest.mark.parametrize("points", cases)


def halves(points: Sequence[Point]) -> tuple[Sequence[Point], Sequence[Point]]:
    """The first and the second half of the points of one phase."""
    middle = -(-len(points) // 2)
    return points[:middle], points[middle:]


def survived(run: TinyRun, points: Sequence[Point], whole: Parts, *options: str) -> str:
    """Dies at each of the points. The account of what is left changes nothing, and is clean only if all is there.

    Then the same command ends well: the bytes of a run that nothing broke off. The account of it.
    """
    for point in points:
        run.killed_at(point, *options)
        before = contents(run.folder)
        clean = run.verify().exit_code != 5
        assert contents(run.folder) == before
        assert not clean or parts(run.path) == whole
    ended = run.start(*options)
    assert ended.code == 3, ended.stderr
    assert parts(run.path) == whole
    assert list(run.path.glob("journal/*")) == []
    verified = run.verify()
    assert verified.exit_code == 3, verified.output
    return verified.output


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@deaths(READING, BINDING, JOURNALLING, COMMITTING, SUMMARISING)
def test_a_new_run(run: TinyRun, whole: dict[str, Parts], points: list[Point]):
    run.write("generate")
    assert SOUND in survived(run, points, whole["generate"])


@pytest.mark.slow
@deaths(JOURNALLING[:2], COMMITTING[:2])
def test_a_run_under_a_grammar(run: TinyRun, whole: dict[str, Parts], points: list[Point]):
    run.write("structured")
    assert SOUND in survived(run, points, whole["structured"])


@pytest.mark.slow
@deaths(*([point] for point in SCORING))
def test_a_scoring_run(run: TinyRun, whole: dict[str, Parts], points: list[Point]):
    run.write("score")
    assert SOUND in survived(run, points, whole["score"])


@pytest.mark.slow
@deaths(*([point] for point in SCORING))
@pytest.mark.parametrize("job", ["embed", pytest.param("classify", marks=pytest.mark.slow)])
def test_a_run_of_a_pooling_model(run: TinyRun, whole: dict[str, Parts], job: str, points: list[Point]):
    run.write(job)
    assert SOUND in survived(run, points, whole[job])


@dataclass(slots=True, frozen=True)
class Begun:
    """A run to go on from, a copy of its folder, and what it comes to when nothing breaks it off."""

    run: TinyRun
    copy: Path
    whole: Parts

    def again(self) -> TinyRun:
        """The run as it was begun, in its own folder, with the input that it goes on with."""
        shutil.rmtree(self.run.folder)
        shutil.copytree(self.copy, self.run.folder)
        (self.run.folder / "rows.jsonl").write_text(lines())
        return self.run


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, children: Children) -> dict[str, Begun]:
    """Complete runs: of a shorter input, and one in which rows failed that need not have."""
    found: dict[str, Begun] = {}
    for name, rows, points, options in (("shorter", 14, [], []), ("failed", ROWS, [FAILING], ["--retry-errors"])):
        run, copy = TinyRun(tmp_path_factory.mktemp(name), children), tmp_path_factory.mktemp("copies") / name
        run.write("generate", rows)
        ended = run.start(points=points)
        assert ended.code == 3, ended.stderr
        assert run.verify().exit_code == 3
        shutil.copytree(run.folder, copy)
        # Not the bytes of a run over the longer input: its last shard has batches of other shapes.
        ended = Begun(run, copy, {}).again().start(*options)
        assert ended.code == 3, ended.stderr
        found[name] = Begun(run, copy, parts(run.path))
    return found


@pytest.mark.slow
@deaths(*halves(EXTENDING))
def test_a_run_that_is_extended(begun: dict[str, Begun], points: list[Point]):
    assert SOUND in survived(begun["shorter"].again(), points, begun["shorter"].whole)


@pytest.mark.slow
@deaths(*halves(RETRYING))
def test_a_run_whose_errors_are_retried(begun: dict[str, Begun], points: list[Point]):
    assert SOUND in survived(begun["failed"].again(), points, begun["failed"].whole, "--retry-errors")


def test_retried_rows_move_to_the_results(begun: dict[str, Begun], whole: dict[str, Parts]):
    retried = begun["failed"].whole
    assert parts(begun["failed"].again().path).keys() > retried.keys() == whole["generate"].keys()
    assert {name: part for name, part in retried.items() if "errors" in name} == {
        name: part for name, part in whole["generate"].items() if "errors" in name
    }


@pytest.mark.slow
def test_a_retry_that_was_broken_off_is_finished_by_the_plain_command(begun: dict[str, Begun]):
    run = begun["failed"].again()
    run.killed_at(RETRYING[2], "--retry-errors")
    assert SOUND in survived(run, [], begun["failed"].whole)


@pytest.mark.slow
@deaths(*halves(ADOPTING))
def test_parts_whose_lines_are_lost(run: TinyRun, whole: dict[str, Parts], points: list[Point]):
    run.write("generate")
    assert run.start().code == 3
    (run.path / "commits.jsonl").unlink()
    inodes = {file.name: file.stat().st_ino for file in run.path.glob("results/*")}
    assert SOUND in survived(run, points, whole["generate"])
    assert {file.name: file.stat().st_ino for file in run.path.glob("results/*")} == inodes  # none was done again


@pytest.mark.slow
@pytest.mark.parametrize("point", OVERWRITING, ids=lambda point: point.name)
def test_a_run_that_takes_the_place_of_another(run: TinyRun, whole: dict[str, Parts], point: Point):
    """A kill while the old run is removed: the plain command finishes the removal, and adopts no part of the old run."""
    run.write("generate")
    assert run.start().code == 3
    files = [file.open("rb") for file in run.path.glob("results/*")]  # held open: no new file gets the inode of an old one
    old = {os.fstat(file.fileno()).st_ino for file in files}
    run.killed_at(point, "--overwrite")
    assert run.start().code == 3
    assert parts(run.path) == whole["generate"]
    assert not old & {file.stat().st_ino for file in run.path.glob("results/*")}
    for file in files:
        file.close()
