"""Tests the text of a status: sparklines, durations, and lines that fit the terminal."""

import json
from pathlib import Path

import pytest
from mlx_bulk.jobs.report.page import Card
from mlx_bulk.jobs.report.run_page import work_cards
from mlx_bulk.jobs.status.text import duration, status_as_json, status_as_text
from mlx_bulk.jobs.terminal.tables import sparkline, width_of
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.runs.status import run_status

from ..support.run_states import before, failure, path, point, started, work

__all__ = ["path"]


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([], 10, ""),
        ([0.0, 0.0], 10, "▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], 9, "▁▂▃▄▅▆▇██"),
        ([5.0], 10, "█"),
        ([1.0, 3.0, 4.0, 4.0], 2, "▅█"),  # neighbours averaged
        ([8.0] * 1000 + [0.0] * 1000, 4, "██▁▁"),
    ],
)
def test_sparklines(values: list[float], width: int, bars: str):
    assert sparkline(values, width) == bars


@pytest.mark.parametrize("count", [1, 39, 40, 41, 79, 1000])
def test_a_sparkline_is_never_wider_than_asked_for(count: int):
    assert len(sparkline([1.0] * count, 40)) == min(count, 40)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (86_400 + 5, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_lengths_of_time(seconds: float, text: str):
    assert duration(seconds) == text


def test_lines_fit_the_terminal_but_for_the_command(path: Path):
    with RunDir.open(path) as run:
        work(run, range(4), [failure(4, "long words " * 200), failure(5, "東京" * 100 + "\n\x1b[2J", "read")])
        started(run, ago=30)
        for at in range(30):
            point(run, at % 5, rate=at, ago=30 - at)
    lines = status_as_text(run_status(path), 80).splitlines()
    assert max(width_of(line) for line in lines if not line.startswith("continue")) <= 80
    assert sum("long words" in line for line in lines) == 4  # and no more
    assert not [line for line in lines if not line.isprintable()]
    assert [line.endswith(" …") for line in lines if "long words" in line] == [False, False, False, True]


def leases(run: RunDir) -> None:
    for worker, seconds, rows, ago in (("mac-1", 4.0, 40, 10), ("mac-2", 3.0, 30, 9), ("mac-1", 6.0, 20, 6)):
        append_line(run.workers, {"time": before(ago), "worker": worker, "shard": 0, "rows": rows, "seconds": seconds})


def test_workers_are_shown_with_their_pace(path: Path):
    """The second lease of mac-1 began while it had the first: 60 rows in 8 seconds."""
    with RunDir.open(path) as run:
        work(run, range(4))
        leases(run)
    status = run_status(path)
    table = [line.split()[:4] for line in status_as_text(status, 80).splitlines()[-3:]]
    assert table == [["worker", "rows", "begun", "again"], ["mac-1", "60", "0", "7.5"], ["mac-2", "30", "0", "10"]]
    unknown = {"rows_begun_again": 0, "peak_memory_bytes": None}
    assert json.loads(status_as_json(status))["workers"] == [
        {"worker": "mac-1", "rows": 60, "rows_per_second": 7.5, **unknown, "last_seen": before(6)},
        {"worker": "mac-2", "rows": 30, "rows_per_second": 10.0, **unknown, "last_seen": before(9)},
    ]
    assert list(work_cards(status))[-1] == Card("Workers", "2", "mac-1: 60 rows, mac-2: 30 rows")


def test_rows_that_were_begun_more_than_once_are_counted(path: Path):
    with RunDir.open(path) as run:
        work(run, range(4))
        leases(run)
        for rows in (5, 7):
            append_line(run.workers, {"time": before(5), "worker": "mac-2", "again": rows})
    status = run_status(path)
    assert [line.split()[:3] for line in status_as_text(status, 80).splitlines()[-2:]] == [["mac-1", "60", "0"], ["mac-2", "30", "12"]]
    assert [each["rows_begun_again"] for each in json.loads(status_as_json(status))["workers"]] == [0, 12]
    assert [each["rows_per_second"] for each in json.loads(status_as_json(status))["workers"]] == [7.5, 10.0]


def test_workers_beyond_the_first_twenty_are_counted(path: Path):
    with RunDir.open(path) as run:
        work(run, range(4))
        for number in range(23):
            append_line(run.workers, {"time": before(1), "worker": f"w\x1b{number:02}", "shard": 0, "rows": 2, "seconds": 1.0})
    lines = status_as_text(run_status(path), 80).splitlines()
    assert lines[-1] == "3 others: 6 rows"
    assert not [line for line in lines if not line.isprintable()]


def test_a_run_without_workers_shows_no_table(path: Path):
    with RunDir.open(path) as run:
        work(run, range(4))
    status = run_status(path)
    assert "rows/s" not in status_as_text(status, 80)
    assert json.loads(status_as_json(status))["workers"] == []
    assert "Workers" not in [card.heading for card in work_cards(status)]
