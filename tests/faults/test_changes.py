"""Tests changes between two starts of a killed run: of input, weights, stdin, and a second process."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from .points import COMMITS, WRITE, Point
from .tiny_runs import ROWS, TinyRun, lines, parts

pytestmark = pytest.mark.slow

Parts = dict[str, bytes]

STOPPED = Point("torn line of a commit", WRITE, COMMITS, "torn", nth=3)


@pytest.fixture
def stopped(run: TinyRun) -> TinyRun:
    """A run that was killed when two of its five shards were committed."""
    run.write("generate")
    run.killed_at(STOPPED)
    return run


def refused(run: TinyRun, *named: str, stdin: Path | None = None) -> None:
    """Checks that the command is refused, names the change, and leaves the run as it was."""
    before = parts(run.path)
    ended = run.start(stdin=stdin)
    assert ended.code == 4, ended.stderr
    assert "Traceback" not in ended.stderr
    for each in named:
        assert each in ended.stderr
    assert parts(run.path) == before


def goes_on(run: TinyRun) -> Parts:
    """Runs the same command to its end, and returns its parts."""
    assert run.start().code == 3
    assert run.verify().exit_code == 3
    return parts(run.path)


@pytest.mark.parametrize("change", ["changed", "reordered", "cut off"])
def test_an_input_that_is_another(stopped: TinyRun, whole: dict[str, Parts], change: str):
    as_it_was, file = lines(), stopped.folder / "rows.jsonl"
    given = as_it_was.splitlines(keepends=True)
    others = {
        "changed": as_it_was.replace("a word", "a Word", 1),
        "reordered": "".join([given[1], given[0], *given[2:]]),
        "cut off": "".join(given[:-1]),
    }
    file.write_text(others[change])
    refused(stopped, "data.path: source 1 was rows.jsonl", "--adopt data.path")
    assert "data.path" in stopped.verify().output
    file.write_text(as_it_was)
    assert goes_on(stopped) == whole["generate"]


def test_an_input_with_rows_appended(run: TinyRun, whole: dict[str, Parts]):
    run.write("generate", ROWS - 2)  # whole shards: a partial last one would have batches of other shapes
    run.killed_at(STOPPED)
    (run.folder / "rows.jsonl").write_text(lines())
    assert goes_on(run) == whole["generate"]


def test_an_input_that_is_gone(stopped: TinyRun, whole: dict[str, Parts]):
    file = stopped.folder / "rows.jsonl"
    file.unlink()
    ended = stopped.start()
    assert (ended.code, "rows.jsonl does not exist" in ended.stderr) == (5, True)
    verified = stopped.verify()
    assert (verified.exit_code, "rows.jsonl does not exist" in verified.output) == (5, True)
    file.write_text(lines())
    assert goes_on(stopped) == whole["generate"]


def test_a_model_quantized_in_place(run: TinyRun, tmp_path: Path, whole: dict[str, Parts]):
    model = shutil.copytree(run.children.model, tmp_path / "model")
    run.write("generate", model={"path": str(model)})
    run.killed_at(STOPPED)
    weights = model / "model.safetensors"
    as_it_was = weights.read_bytes()
    header = 8 + int.from_bytes(as_it_was[:8], "little")
    rounded = np.round(np.frombuffer(as_it_was[header:], np.float32) * 64) / 64
    times = weights.stat()
    weights.write_bytes(as_it_was[:header] + rounded.astype(np.float32).tobytes())
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    refused(run, "model.weights: the run has sha256", "--adopt model.weights")
    weights.write_bytes(as_it_was)
    assert goes_on(run) == whole["generate"]


def test_two_at_once(run: TinyRun, whole: dict[str, Parts]):
    run.write("generate")
    first = run.begin(points=[Point("at work", WRITE, COMMITS, nth=2, action="hold")])
    assert first.at_point() == "at work"
    second = run.start()
    assert second.code == 5
    assert f"process {first.pid} on " in second.stderr
    assert "is working here. Wait for it, stop it, or choose another --output." in second.stderr
    assert run.verify().exit_code == 5  # takes no lock
    first.go_on()
    assert first.wait().code == 3
    assert parts(run.path) == whole["generate"]


def test_a_process_that_died_leaves_no_lock(stopped: TinyRun, whole: dict[str, Parts]):
    assert '"pid"' in (stopped.path / ".lock").read_text()
    assert goes_on(stopped) == whole["generate"]


def test_rows_from_stdin_are_kept(run: TinyRun, tmp_path: Path):
    unbroken, other = TinyRun(tmp_path / "unbroken", run.children), tmp_path / "other.jsonl"
    for each in (run, unbroken):
        each.write("generate", data={"path": "-"})
    piped = run.folder / "rows.jsonl"
    assert unbroken.start(stdin=piped).code == 3
    other.write_text(lines(1))
    run.killed_at(STOPPED, stdin=piped)
    refused(run, "stdin brings other rows than those the run began with", stdin=other)
    run.killed_at(STOPPED, stdin=piped)
    assert goes_on(run) == parts(unbroken.path)  # from the copy in the run directory: nothing is piped in
