"""Tests a run's history from lines written by hand: sessions, their ends, speeds, tokens of all sessions."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.runs.history import History, history
from mlx_bulk.runner.store.paths import RunPaths

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Written:
    """The two files of a run, written line by line; times are seconds after START."""

    def __init__(self, folder: Path):
        self.paths = RunPaths(folder)

    def start(self, at: float, pid: int = 1) -> None:
        self.note(at, {"event": "start", "pid": pid})

    def end(self, at: float, how: str, **about: Any) -> None:
        self.note(at, {"event": "end", "how": how, **about})

    def point(self, at: float, rows: int, rate: float, prompt: int = 0, generated: int = 0) -> None:
        tokens = {"prompt_tokens": prompt, "generated_tokens": generated, "scored_tokens": 0}
        append_line(self.paths.metrics, {"time": time(at), "rows": rows, "errors": 0, **tokens, "tokens_per_second": rate})

    def note(self, at: float, line: dict[str, Any]) -> None:
        append_line(self.paths.sessions, {"time": time(at), **line})

    def read(self) -> History:
        return history(self.paths)


def time(at: float) -> str:
    return (START + timedelta(seconds=at)).isoformat(timespec="seconds")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_no_files_are_no_history(written: Written):
    found = written.read()
    assert (found.sessions, found.points, found.tokens_per_second, found.rows_per_second) == ([], [], None, None)
    assert (found.tokens["prompt_tokens"], found.seconds) == (0, 0.0)


def test_lines_of_metrics_belong_to_the_session_that_wrote_them(written: Written):
    written.start(0)
    written.point(30, 10, 100.0, prompt=1000, generated=2000)
    written.point(60, 25, 200.0, prompt=3000, generated=6000)
    written.end(61, "stopped", rows=25, errors=1)
    written.start(1000, pid=2)
    written.point(1030, 40, 50.0, prompt=500, generated=1000)
    found = written.read()
    assert [(len(s.points), s.how, s.rows, s.pid) for s in found.sessions] == [(2, "stopped", 25, 1), (1, "", None, 2)]
    assert found.tokens == {"prompt_tokens": 3500, "generated_tokens": 7000, "scored_tokens": 0}
    assert found.seconds == 90.0
    assert found.rows_per_second == (40 - 25) / 30  # of this session: what an earlier one did is no speed


def test_rows_after_the_last_line_of_a_killed_session_are_no_speed_of_the_next(written: Written):
    written.start(0)
    written.point(30, 100, 1.0)  # it dies at 59 s, and 95 more rows are in its journal
    written.note(1000, {"event": "start", "pid": 2, "rows": 195})
    written.point(1030, 205, 1.0)
    assert written.read().rows_per_second == 10 / 30
    assert written.read().sessions[1].before == 195


def test_the_mean_speed_is_by_the_lengths_of_intervals(written: Written):
    written.start(0)
    written.point(30, 1, 100.0)
    written.point(40, 2, 500.0)
    assert written.read().tokens_per_second == (30 * 100 + 10 * 500) / 40


def test_a_run_shorter_than_a_second_has_a_speed(written: Written):
    written.start(0)
    written.point(0, 5, 1234.0)
    assert written.read().tokens_per_second == 1234.0
    assert written.read().rows_per_second is None


def test_the_speed_in_rows_is_that_of_the_last_ten_minutes(written: Written):
    written.start(0)
    for number in range(1, 101):
        written.point(30 * number, number if number <= 80 else 80 + 10 * (number - 80), 1.0)
    assert written.read().rows_per_second == 10 / 30


def test_the_last_end_counts_and_other_events_are_none(written: Written):
    written.note(0, {"event": "adopted", "key": "x"})
    written.end(1, "complete")
    assert written.read().sessions == []
    written.start(2)
    written.end(3, "stopped", rows=1, errors=0)
    written.end(4, "OutOfRoom", message="no room")
    [session] = written.read().sessions
    assert (session.how, session.message, session.rows) == ("OutOfRoom", "no room", None)


def test_damaged_lines_are_left_out(written: Written):
    written.start(0)
    written.point(30, 1, 1.0)
    written.point(60, 2, 2.0)
    content = written.paths.metrics.read_bytes()
    written.paths.metrics.write_bytes(content.replace(b'"rows":1', b'"rows":7') + b'{"torn')
    assert [point.rows for point in written.read().points] == [2]
