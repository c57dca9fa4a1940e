"""Tests that a stalled session names its step: a model call, loading, or a stuck disk."""

import threading
from typing import Any

import pytest
from mlx_bulk.runner.pipeline import heartbeat, io_threads, loading, run_spec
from mlx_bulk.runner.store import writer

from ..jobs.support.bench import Bench, Record

PATIENCE = 30.0  # seconds after which a test that waits for another thread has failed
ROWS: list[Record] = [{"q": "word"} for _ in range(24)]


class Said:
    """Stands where the heartbeat's log does; ``wait`` returns once something has been said."""

    def __init__(self, *awaited: str):
        self._events = {text: threading.Event() for text in awaited}

    def warning(self, text: str, *values: Any) -> None:
        for awaited, event in self._events.items():
            if (text % values).endswith(f"still {awaited}"):
                event.set()

    def wait(self, text: str) -> None:
        assert self._events[text].wait(PATIENCE), text


def test_a_stall_is_told_whatever_it_is(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    scanning, loads = "reading the input and the tokenizer", "loading the model"
    disk, closing = "waiting for finished rows to be written", "writing the last records"
    said = Said(scanning, loads, disk, closing)
    owner: Any = writer.Writer
    scan, fit, add, close = run_spec.scan, loading.fit, owner._add, owner.close

    def scanned(*arguments: Any) -> Any:
        said.wait(scanning)
        return scan(*arguments)

    def fitted(*arguments: Any) -> Any:
        said.wait(loads)
        return fit(*arguments)

    def added(self: Any, *arguments: Any) -> None:
        said.wait(disk)
        add(self, *arguments)

    def closed(self: Any, flush: bool = True) -> None:
        said.wait(closing)
        close(self, flush)

    monkeypatch.setattr(heartbeat, "log", said)
    monkeypatch.setattr(heartbeat, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(io_threads, "OUTCOMES", 2)
    monkeypatch.setattr(writer, "_QUEUE_ITEMS", 1)
    monkeypatch.setattr(run_spec, "scan", scanned)
    monkeypatch.setattr(loading, "fit", fitted)
    monkeypatch.setattr(owner, "_add", added)
    monkeypatch.setattr(owner, "close", closed)
    done = bench.run(rows=ROWS, batch={"rows": 24, "stall_seconds": 0.01})
    assert (done.code, len(done.records)) == (0, 24), done.stderr
