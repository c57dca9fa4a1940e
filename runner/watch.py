"""Watches a run from beside it: a progress bar or plain lines, and a line of metrics an interval.

Reads counters that others write and never touches the model. On a terminal the bar is tqdm's; elsewhere one plain line an
interval, so that a log file stays readable.
"""

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from .engine import Progress
from .memory import peak_bytes

log = logging.getLogger("mlx_bulk")

REDRAW_SECONDS, LINE_SECONDS = 0.5, 30.0


@dataclass(slots=True, frozen=True)
class Counts:
    """How far a run is: input rows resolved (those of earlier sessions too), of how many, and quarantined ones."""

    rows: int
    of: int
    errors: int


class Watch:
    """A context manager around the run. ``counts`` is asked for the rows, ``metrics`` takes a line an interval."""

    def __init__(self, progress: Progress, counts: Callable[[], Counts], metrics: Callable[[dict[str, Any]], None], quiet: bool):
        self._progress, self._counts, self._metrics = progress, counts, metrics
        self._bar: tqdm[Any] | None = None
        self._show = not quiet
        self._redirect = ExitStack()
        self._noted = monotonic(), 0  # when the last line of metrics was written, and the tokens until then
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> "Watch":
        at = self._counts()
        if self._show and sys.stderr.isatty():
            self._redirect.enter_context(logging_redirect_tqdm([log]))
            self._bar = tqdm(total=at.of, initial=at.rows, unit="row", dynamic_ncols=True, file=sys.stderr)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._note()
        if self._bar is not None:
            self._redraw()
            self._bar.close()
        self._redirect.close()

    def _run(self) -> None:
        start = line_due = monotonic()
        line_due += LINE_SECONDS
        while not self._stopped.wait(REDRAW_SECONDS):
            now = monotonic()
            if self._bar is not None:
                self._redraw(self._tokens / max(now - start, 1e-9))
            if now >= line_due:
                line_due = now + LINE_SECONDS
                rate = self._note()
                if self._show and self._bar is None:
                    at = self._counts()
                    log.info("%d of %d rows, %d errors, %s tok/s", at.rows, at.of, at.errors, f"{rate:,.0f}")

    @property
    def _tokens(self) -> int:
        return self._progress.prompt + self._progress.generated

    def _redraw(self, rate: float | None = None) -> None:
        assert self._bar is not None
        at = self._counts()
        self._bar.n = at.rows
        if rate is not None:
            self._bar.set_postfix_str(f"{rate:,.0f} tok/s" + (f", {at.errors} errors" if at.errors else ""), refresh=False)
        self._bar.refresh()

    def _note(self) -> float:
        """Writes a line of metrics; the tokens a second since the line before."""
        at, p, now = self._counts(), self._progress, monotonic()
        rate = max(0, self._tokens - self._noted[1]) / max(now - self._noted[0], 1e-9)  # rows that start again count once
        self._noted = now, self._tokens
        waste = 1 - p.prefilled / p.padded if p.padded else 0.0
        line: dict[str, Any] = {
            "rows": at.rows,
            "errors": at.errors,
            "prompt_tokens": p.prompt,
            "generated_tokens": p.generated,
            "scored_tokens": p.scored,
        }
        line |= {"tokens_per_second": round(rate, 1), "padding_waste": round(waste, 4)}
        line |= {"slots_filled": round(p.generated / p.places, 4) if p.places else None, "peak_memory_bytes": peak_bytes()}
        try:
            self._metrics(line)
        except OSError as error:
            log.warning("metrics.jsonl cannot be written: %s", error)
        return rate
