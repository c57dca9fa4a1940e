"""Signals: SIGINT and SIGTERM end a run between two steps, so that finished rows are safe. Knows no run."""

import os
import signal
import threading
from types import FrameType
from typing import Any

import click


class Stop:
    """SIGINT and SIGTERM ask the run to end between two steps; a second one ends it at once (what is on disk stays right).

    Before the first step there is nothing to save: reading the input or loading the model is broken off.
    """

    def __init__(self) -> None:
        self.code = 0
        self._stepping = False
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """True once a signal has come; who asks for the first time is about to take a step."""
        self._stepping = True
        return self._asked.is_set()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self._asked.is_set():
            os._exit(128 + number)
        self.code = 128 + number
        if not self._stepping:
            raise KeyboardInterrupt
        self._asked.set()
        click.echo(f"\nmlx-bulk: {signal.Signals(number).name}: finishing this step and saving (again: stop at once)", err=True)
