"""The watch beside a run: a plain line and a line of metrics an interval."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from mlx_bulk.runner import watch
from mlx_bulk.runner.engine import Progress
from mlx_bulk.runner.watch import Counts, Watch

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
    monkeypatch.setattr(watch, "REDRAW_SECONDS", 0.001)


def counts() -> Counts:
    return Counts(rows=3, of=10, errors=1)


def test_lines_and_metrics_an_interval(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "LINE_SECONDS", 0.001)
    seen: list[dict[str, Any]] = []
    enough = threading.Event()

    def metrics(values: dict[str, Any]) -> None:
        seen.append(values)
        if len(seen) == 3:
            enough.set()

    progress = Progress(prompt=60, prefilled=60, padded=80, generated=30, places=40)
    with heard() as handler, Watch(progress, counts, metrics, quiet=False):
        assert enough.wait(PATIENCE)
    assert handler.messages[0].startswith("3 of 10 rows, 1 errors, ")
    line = seen[0]
    assert (line["rows"], line["errors"], line["prompt_tokens"], line["generated_tokens"]) == (3, 1, 60, 30)
    assert (line["padding_waste"], line["slots_filled"]) == (0.25, 0.75)
    assert line["peak_memory_bytes"] > 0
