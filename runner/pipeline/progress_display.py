"""Shows the progress of a run, as a bar, as plain lines or as lines of JSON, and writes a line of metrics an interval.

A thread of its own reads counters that others write; it never touches the model. On a terminal the bar is tqdm's. Elsewhere it is
one plain line an interval, so that a log file stays readable. A reader of these lines may go away at any time: the run goes on.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, Protocol

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ..core.progress import Progress
from ..models.device_memory import peak_bytes
from ..runs.throughput import Counts, Pace

log = logging.getLogger("mlx_bulk")

Show = Literal["progress", "json", "nothing"]  # progress: a bar on a terminal, else plain lines

REDRAW_SECONDS, LINE_SECONDS, JSON_SECONDS = 0.5, 30.0, 5.0
_BAR = 10  # the least columns of the bar itself, with its ends
_NO_TERMINAL = 80


class WatchedWorkers(Protocol):
    """The workers of a run, for those who watch it. For any thread."""

    def shown(self) -> list[dict[str, Any]]:
        """Returns what a line of JSON tells of the workers that are there: docs/status.md lists the fields."""
        ...

    def note(self) -> None:
        """Writes workers.json, for ``mlx-bulk status``. Raises OSError."""
        ...


class Watch:
    """A context manager around the run. ``counts`` returns the rows done so far; ``metrics`` takes a line an interval.

    began: says whether the start is noted: what goes before, as while workers are awaited, is in no speed and no line of metrics.
    workers: of a run that has some.
    """

    def __init__(
        self,
        progress: Progress,
        counts: Callable[[], Counts],
        metrics: Callable[[dict[str, Any]], None],
        show: Show,
        began: Callable[[], bool] = lambda: True,
        workers: WatchedWorkers | None = None,
    ):
        self._workers = workers
        self._progress, self._counts, self._metrics, self._show, self._began = progress, counts, metrics, show, began
        self._pace = Pace()
        self._bar: tqdm[Any] | None = None
        self._redirect = ExitStack()
        self._start = monotonic()
        self._last_note = self._start, 0  # time of the last line of metrics, and the tokens until then
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> "Watch":
        self._look()
        if self._show == "progress" and shows_bar():
            at = self._pace.counts
            self._redirect.enter_context(logging_redirect_tqdm([log]))
            with suppress(OSError):
                self._bar = tqdm(total=at.of, initial=at.rows, bar_format="|{bar}| {desc}", dynamic_ncols=True, file=sys.stderr)
            self._redraw()
        self._write_json("running")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._look()
        self._note()
        self._note_workers()
        if self._bar is not None:
            self._redraw()
            with suppress(OSError):
                self._bar.close()
        self._redirect.close()
        at = self._pace.counts
        self._write_json("failed" if kind is not None and issubclass(kind, Exception) else "complete" if at.rows >= at.of else "stopped")

    def _run(self) -> None:
        line_due, json_due = self._start + LINE_SECONDS, self._start + JSON_SECONDS
        while not self._stopped.wait(REDRAW_SECONDS):
            now = self._look()
            if self._bar is not None:
                self._redraw()
            if now >= json_due:
                json_due = now + JSON_SECONDS
                self._write_json("running")
                self._note_workers()
            if now >= line_due:
                line_due = now + LINE_SECONDS
                self._note()
                if self._show == "progress" and self._bar is None:
                    log.info("%s", self._pace.line())

    @property
    def _tokens(self) -> int:
        return self._progress.prompt + self._progress.generated

    def _look(self) -> float:
        """Adds the present counts to the pace, and returns the present time (``monotonic`` seconds)."""
        now = monotonic()
        if not self._began():
            self._last_note = now, self._tokens
        self._pace.add(now, self._counts(), self._tokens)
        return now

    def _redraw(self) -> None:
        if self._bar is None:
            return
        self._bar.n = self._pace.counts.rows
        self._bar.set_description_str(self._pace.line(_columns() - _BAR - 1), refresh=False)
        with suppress(OSError):
            self._bar.refresh()

    def _write_json(self, state: str) -> None:
        """Writes one line to stderr. It begins with a brace, as no line of the log does; docs/status.md lists its fields."""
        if self._show != "json":
            return
        at, p, left = self._pace.counts, self._progress, self._pace.seconds_left
        line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "state": state}
        line |= {"seconds": round(monotonic() - self._start, 1), "rows": at.rows, "of": at.of, "errors": at.errors}
        line |= {"prompt_tokens": p.prompt, "generated_tokens": p.generated, "scored_tokens": p.scored}
        line |= {"tokens_per_second": round(self._pace.tokens_per_second, 1), "seconds_left": None if left is None else round(left)}
        line |= {"policy": at.policy, "doing": p.activity.now, "peak_memory_bytes": peak_bytes()}
        line |= {"workers": [] if self._workers is None else self._workers.shown()}
        with suppress(OSError):
            sys.stderr.write(json.dumps(line) + "\n")
            sys.stderr.flush()

    def _note_workers(self) -> None:
        try:
            if self._workers is not None:
                self._workers.note()
        except OSError as error:
            log.warning("workers.json cannot be written: %s", error)

    def _note(self) -> None:
        """Writes a line of metrics, with the tokens a second since the previous line or the start."""
        if not self._began():
            return
        at, p, now = self._pace.counts, self._progress, monotonic()
        rate = max(0, self._tokens - self._last_note[1]) / max(now - self._last_note[0], 1e-9)  # rows that start again count once
        self._last_note = now, self._tokens
        waste = 1 - p.prefilled / p.padded if p.padded else 0.0
        line: dict[str, Any] = {
            "rows": at.rows,
            "errors": at.errors,
            "prompt_tokens": p.prompt,
            "generated_tokens": p.generated,
            "scored_tokens": p.scored,
        }
        line |= {"tokens_per_second": round(rate, 1), "padding_waste": round(waste, 4)}
        line |= {"slots_filled": round(p.generated / p.slot_steps, 4) if p.slot_steps else None, "peak_memory_bytes": peak_bytes()}
        try:
            self._metrics(line)
        except OSError as error:
            log.warning("metrics.jsonl cannot be written: %s", error)


def shows_bar() -> bool:
    """Returns True when stderr is a terminal that can go back to the beginning of its line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _NO_TERMINAL
    except (OSError, ValueError):  # a stream without a file
        return _NO_TERMINAL
