"""Tests signals during an endless step: the process ends within 5 seconds, finished rows are safe, the same command continues."""

import json
import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml
from mlx_bulk.jobs.supervision import signals
from mlx_bulk.jobs.supervision.signals import Stop

from ..support.bench import Bench, Record, table_of

PATIENCE = 60.0  # seconds after which a test that waits for a process has failed
SOON = 0.2  # of grace, where the test is not about how long it is

BLOCKING = Path(__file__).parents[1] / "support" / "blocking_rewards.py"
STEP = "mlx_bulk.runner.engine.decode_batch:DecodeBatch.step"
ROWS: list[Record] = [{"q": "word " * (1 + 7 * row % 13)} for row in range(24)]
MANY_ROWS = ROWS * 3000  # more than a run finishes before the signal comes: it does some thousand rows a second
JOB: dict[str, Any] = {"batch": {"rows": 4, "rows_per_shard": 64}, "output": {"fsync_seconds": 3600}}


class Blocked:
    """A command that has reached the function that blocks."""

    def __init__(self, config: Path, where: str, after: int, grace: float, options: Sequence[str]):
        said, theirs = os.pipe()
        command = [sys.executable, str(BLOCKING), str(theirs), where, str(after), str(grace), "run", str(config), "--no-supervised"]
        command += options
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[theirs], stdin=subprocess.DEVNULL)
        os.close(theirs)
        with os.fdopen(said) as pipe:
            self.arrived = pipe.readline() == "in there\n"

    def ended(self, *numbers: int) -> tuple[int, list[str], float]:
        """Sends the signals; returns the exit code, the lines on stderr, and the seconds since the first signal."""
        assert self.arrived, self.process.communicate(timeout=PATIENCE)
        begin = monotonic()
        for number in numbers:
            self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, [line for line in stderr.splitlines() if line], monotonic() - begin


@contextmanager
def blocked(config: Path, where: str = STEP, after: int = 6, grace: float = SOON, options: Sequence[str] = ()) -> Generator[Blocked]:
    child = Blocked(config, where, after, grace, options)
    try:
        yield child
    finally:
        child.process.kill()
        child.process.communicate()


def sessions(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "sessions.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_step_that_takes_for_ever_does_not_hold_up_the_end(bench: Bench):
    with blocked(bench.write_config(rows=ROWS, **JOB), grace=signals.GRACE_SECONDS) as child:
        code, said, seconds = child.ended(signal.SIGTERM)
    assert code == 143
    assert seconds < 5
    assert said[-2:] == [
        "mlx-bulk: SIGTERM: finishing this step and saving (again: stop at once)",
        "mlx-bulk: SIGTERM: the step takes too long and is broken off; finished rows are safe, the same command continues",
    ]
    end = sessions(bench.root / "run")[-1]
    assert (end["event"], end["how"]) == ("end", "stopped")
    assert 6 <= end["rows"] < 24
    # Nothing but the watcher's thread can have written them: fsync_seconds is an hour.
    done = bench.run(rows=ROWS, **JOB)
    assert (done.code, len(done.records)) == (0, 24)
    generated = json.loads((bench.root / "run/summary.json").read_text())["session"]["generated_tokens"]
    assert generated <= 6 * (24 - end["rows"])


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(bench: Bench):
    with blocked(bench.write_config(rows=ROWS, **JOB), grace=3600) as child:
        assert child.arrived
        child.process.send_signal(signal.SIGINT)
        assert child.process.stderr is not None
        while "finishing this step" not in (line := child.process.stderr.readline()):
            assert line, "the watcher has said nothing"
        code, said, _ = child.ended(signal.SIGTERM)
    assert (code, said) == (143, [])


def test_the_second_sigterm_of_gnu_timeout_is_the_first_one_s_echo(monkeypatch: pytest.MonkeyPatch):
    """The watcher gets both at once; a second one later counts, and so does another signal."""
    stop = Stop()
    reading, writing = os.pipe()
    monkeypatch.setattr(stop, "_ends", (reading, writing))
    now = monotonic()
    try:
        for echoes_end, sent, counts in (
            (now + 3600, [signal.SIGTERM], None),
            (now, [signal.SIGTERM], signal.SIGTERM),
            (now + 3600, [signal.SIGTERM, signal.SIGINT], signal.SIGINT),
        ):
            monkeypatch.setattr(stop, "_echoes_end", echoes_end)
            os.write(writing, bytes(sent))
            assert stop._next_signal(0.0, signal.SIGTERM) == counts  # pyright: ignore[reportPrivateUsage]
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("timeout") is None, reason="GNU timeout")
@pytest.mark.parametrize("supervised", ["--supervised", "--no-supervised"])
def test_timeout_ends_a_run_as_one_sigterm_does(bench: Bench, supervised: str):
    path = bench.write_config(rows=MANY_ROWS, batch={"rows_per_shard": 64}, sampling={"max_tokens": 40})
    command = ["timeout", "3600", sys.executable, "-m", "mlx_bulk.jobs", "run", str(path), supervised, "--log-level", "error"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        commits = bench.root / "run" / "commits.jsonl"  # it stays, while the journal is empty again and again
        while not commits.exists():
            assert process.poll() is None, "the run ended"
            sleep(0.05)
        process.send_signal(signal.SIGTERM)  # timeout passes it on twice, as when its time is over
        said = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
        process.wait()
    assert "stopped; the same command continues" in said
    assert sessions(bench.root / "run")[-1]["how"] == "stopped"


@pytest.mark.slow
def test_quiet_shows_only_errors(bench: Bench):
    with blocked(bench.write_config(rows=ROWS, **JOB), options=["--quiet"]) as child:
        code, said, _ = child.ended(signal.SIGINT)
    assert code == 130
    assert len(said) == 1  # what could not be finished
    assert "finishing this step" not in said[0]


@pytest.mark.slow
def test_loading_is_broken_off(bench: Bench):
    with blocked(bench.write_config(rows=ROWS, **JOB), "mlx_bulk.runner.pipeline.loading:fit", after=0) as child:
        code, said, _ = child.ended(signal.SIGINT)
    assert code == 130
    assert said[-1] == "mlx-bulk: interrupted before the first step of this session; nothing was lost, the same command continues"
    assert bench.run(rows=ROWS, **JOB).code == 0


@pytest.mark.slow
def test_a_disk_that_is_stuck_as_well_does_not_hold_up_the_end(bench: Bench):
    path = bench.write_config(rows=ROWS, batch={"rows": 4, "rows_per_shard": 64}, output={"fsync_seconds": 0})
    with blocked(path, "mlx_bulk.runner.store.writer:Writer._flush", after=6) as child:
        code, said, _ = child.ended(signal.SIGTERM)
    assert code == 143
    assert "SIGTERM: neither the step nor the disk got ready; rows finished in the last seconds are done again" in said[-1]
    assert bench.run(rows=ROWS, batch=JOB["batch"]).code == 0


@pytest.mark.slow
def test_a_report_that_takes_for_ever_does_not_hold_up_the_end_of_a_complete_run(bench: Bench):
    with blocked(bench.write_config(rows=ROWS, **JOB), "mlx_bulk.jobs.report.report:render_page", after=0) as child:
        code, said, _ = child.ended(signal.SIGTERM)
    assert code == 0
    assert said[-1] == "mlx-bulk: SIGTERM: the run is complete; its report takes too long and is left out (mlx-bulk report writes it)"
    assert sessions(bench.root / "run")[-1]["how"] == "complete"


@pytest.mark.slow
def test_a_sweep_ends_in_its_second_cell_and_goes_on(bench: Bench):
    base = yaml.safe_load(bench.write_config(rows=ROWS[:8], **JOB).read_text())
    output = base.pop("output")["path"]
    path = bench.root / "sweep.yaml"
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.max_tokens": [2, 60]}, "output": {"path": output}}
    path.write_text(yaml.safe_dump(sweep))
    with blocked(path, after=9) as child:  # the second cell has steps left when its first records are written
        code, said, _ = child.ended(signal.SIGTERM)
    assert code == 143
    assert "finished rows are safe" in said[-1]
    assert bench.command(path).code == 0
    assert [table_of(cell / "results").num_rows for cell in sorted(Path(output).glob("*/"))] == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("supervised", ["--supervised", "--no-supervised"])
def test_a_closed_terminal_saves_and_ends_the_run(bench: Bench, supervised: str):
    path = bench.write_config(rows=MANY_ROWS, batch={"rows_per_shard": 64}, sampling={"max_tokens": 40})
    terminal, theirs = os.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", take, sys.executable, "-m", "mlx_bulk.jobs", "run", str(path), supervised]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    try:
        shown = b""
        journal = bench.root / "run" / "journal"
        while b"tok/s" not in shown or not any(journal.iterdir()):  # the bar is there before the first step
            shown += os.read(terminal, 4096)
        os.close(terminal)
        assert process.wait(PATIENCE) == 129
    finally:
        process.kill()
        process.wait()
    assert sessions(bench.root / "run")[-1]["how"] == "stopped"
