"""Tests the display of progress: a bar on a terminal, plain lines elsewhere, JSON on request, and metrics."""

import io
import json
import logging
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from mlx_bulk.runner.core.progress import Progress
from mlx_bulk.runner.pipeline import progress_display
from mlx_bulk.runner.pipeline.progress_display import Show, Watch
from mlx_bulk.runner.runs.throughput import Counts

PATIENCE = 30.0  # seconds after which a test that waits for another thread has failed


class Heard(logging.Handler):
    """Collects messages, and says when the first has come."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.first = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.first.set()


@contextmanager
def heard() -> Generator[Heard]:
    log, handler = logging.getLogger("mlx_bulk"), Heard()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_display, "REDRAW_SECONDS", 0.001)


def counts() -> Counts:
    return Counts(rows=3, of=10, errors=1)


PROGRESS = Progress(prompt=60, prefilled=60, padded=80, generated=30, slot_steps=40)


def watched(show: Show, lines: int) -> list[dict[str, Any]]:
    """Watches until so many lines of metrics have been written; those lines."""
    seen: list[dict[str, Any]] = []
    enough = threading.Event()

    def metrics(values: dict[str, Any]) -> None:
        seen.append(values)
        if len(seen) == lines:
            enough.set()

    with Watch(PROGRESS, counts, metrics, show):
        assert enough.wait(PATIENCE)
    return seen


def test_lines_and_metrics_an_interval(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    with heard() as handler:
        line = watched("progress", 3)[0]
    assert handler.messages[0] == "3 of 10 rows (30.0 %), 0 tok/s, 1 error, 90 tokens"
    assert (line["rows"], line["errors"], line["prompt_tokens"], line["generated_tokens"]) == (3, 1, 60, 30)
    assert (line["padding_waste"], line["slots_filled"]) == (0.25, 0.75)
    assert line["peak_memory_bytes"] > 0


@pytest.mark.parametrize("show", ["nothing", "json"])
def test_no_plain_lines_where_nothing_or_json_is_asked_for(show: Show, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    with heard() as handler:
        assert len(watched(show, 3)) >= 3
    assert handler.messages == []


def test_json_has_a_line_an_interval_and_one_at_each_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    monkeypatch.setattr(progress_display, "JSON_SECONDS", 0.001)
    watched("json", 3)
    first, *between, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["state"], last["state"]) == ("running", "stopped")  # 3 of 10 rows
    assert len(between) >= 2
    assert (last["rows"], last["of"], last["errors"], last["prompt_tokens"], last["generated_tokens"]) == (3, 10, 1, 60, 30)
    assert last["seconds_left"] is None
    assert last["doing"] == "waiting for input"


@pytest.mark.parametrize(("show", "intervals"), [("json", 2), ("nothing", 0), ("progress", 0)])
def test_a_run_shorter_than_an_interval_tells_json_its_ends(show: Show, intervals: int, capsys: pytest.CaptureFixture[str]):
    with Watch(PROGRESS, counts, lambda _: None, show):
        pass
    assert len(capsys.readouterr().err.splitlines()) == intervals


@pytest.mark.parametrize(
    ("rows", "raised", "state"),
    [(10, None, "complete"), (9, None, "stopped"), (9, KeyboardInterrupt, "stopped"), (10, OSError, "failed")],
)
def test_the_last_line_of_json_says_how_it_ended(
    rows: int, raised: type[BaseException] | None, state: str, capsys: pytest.CaptureFixture[str]
):
    with suppress(KeyboardInterrupt, OSError), Watch(PROGRESS, lambda: Counts(rows, 10, 0), lambda _: None, "json"):
        if raised is not None:
            raise raised
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["state"] == state


class Gone(io.StringIO):
    """A stream that nobody reads any more."""

    def __init__(self, terminal: bool):
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize(("show", "terminal"), [("json", False), ("progress", True)])
def test_a_reader_that_goes_ends_nothing(monkeypatch: pytest.MonkeyPatch, show: Show, terminal: bool):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Gone(terminal))
    monkeypatch.setattr(progress_display, "_columns", lambda: 80)
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    monkeypatch.setattr(progress_display, "JSON_SECONDS", 0.001)
    assert len(watched(show, 3)) >= 3


class Terminal(io.StringIO):
    """A stream that tqdm takes for a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch, term: str) -> Terminal:
    """stderr as a terminal from here on; to be called in the test itself, as pytest sets stderr when that begins."""
    found = Terminal()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(progress_display, "_columns", lambda: 80)
    return found


def test_a_terminal_gets_one_bar_that_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch):
    terminal = terminal_of(monkeypatch, "xterm")
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    with heard() as handler:
        watched("progress", 3)
    drawn = terminal.getvalue()
    assert handler.messages == []
    assert drawn.count("\n") == 1  # the bar ends its line when it closes
    assert "3 of 10 rows (30.0 %)" in drawn.rsplit("\r", 1)[1]


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch: pytest.MonkeyPatch):
    terminal = terminal_of(monkeypatch, "dumb")
    monkeypatch.setattr(progress_display, "LINE_SECONDS", 0.001)
    with heard() as handler:
        watched("progress", 3)
    assert handler.messages
    assert "\r" not in terminal.getvalue()


def test_a_disk_that_takes_no_metrics_ends_nothing():
    def metrics(_: dict[str, Any]) -> None:
        raise OSError("no room")

    with heard() as handler, Watch(PROGRESS, counts, metrics, "nothing"):
        pass
    assert handler.messages == ["metrics.jsonl cannot be written: no room"]


def test_the_wait_for_workers_is_in_no_speed(monkeypatch: pytest.MonkeyPatch):
    now, began, lines, progress = [0.0], [False], list[dict[str, Any]](), Progress()
    monkeypatch.setattr(progress_display, "monotonic", lambda: now[0])
    watch = Watch(progress, lambda: Counts(0, 10, 0), lines.append, "nothing", began=lambda: began[0])
    now[0] = 6.0
    with watch:
        began[0] = True
        progress.prompt = 64
        now[0] = 7.0
    assert [line["tokens_per_second"] for line in lines] == [64.0]


def test_a_start_that_was_never_noted_has_no_metrics():
    lines = list[dict[str, Any]]()
    with Watch(Progress(), lambda: Counts(0, 10, 0), lines.append, "nothing", began=lambda: False):
        pass
    assert lines == []
