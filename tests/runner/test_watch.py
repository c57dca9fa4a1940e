"""The watch beside a run: a line when it stalls, lines of metrics, nothing on a quiet run."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
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


def test_a_stall_says_what_the_engine_is_doing():
    progress = Progress()
    progress.doing("prefilling 4 rows of up to 900 tokens")
    progress.since = monotonic() - 200
    with heard() as handler, Watch(progress, counts, lambda _: None, stall_seconds=120, quiet=False):
        assert handler.first.wait(PATIENCE)
    assert handler.messages == ["no step for 200 s: still prefilling 4 rows of up to 900 tokens"]  # once, not at every look


def test_a_run_that_moves_is_no_stall(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "LINE_SECONDS", 0.001)
    seen: list[dict[str, Any]] = []
    enough = threading.Event()

    def metrics(values: dict[str, Any]) -> None:
        seen.append(values)
        if len(seen) == 3:
            enough.set()

    progress = Progress(prompt=60, prefilled=60, padded=80, generated=30, places=40)
    with heard() as handler, Watch(progress, counts, metrics, stall_seconds=1000, quiet=False):
        assert enough.wait(PATIENCE)
    assert not [message for message in handler.messages if "no step" in message]
    assert handler.messages[0].startswith("3 of 10 rows, 1 errors, ")
    line = seen[0]
    assert (line["rows"], line["errors"], line["prompt_tokens"], line["generated_tokens"]) == (3, 1, 60, 30)
    assert (line["padding_waste"], line["slots_filled"]) == (0.25, 0.75)
    assert line["peak_memory_bytes"] > 0
