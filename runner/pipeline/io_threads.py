"""Beside the model: rows become requests a window ahead, outcomes become records and go to the writer.

Two threads with bounded queues, so the device waits neither for tokenization nor for the disk. They hold what a row needs
until its last sample is recorded; memory does not grow with the dataset.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Full, Queue

from ..core.errors import RowError
from ..core.requests import AnyRequest, BadRow, Failure, Outcome, Request, Row
from ..core.shard_layout import Layout
from ..store.recovery import Recovered
from .group_rating import RATED_AT_ONCE
from .job import Job, row_failure
from .recorder import Recorder
from .sinks import Sink

WINDOW_ROWS = 4096
OUTCOMES = 1024

_RATED = "rated"
_Posted = Outcome | tuple[int, int] | threading.Event | str | None


class StoppedError(Exception):
    """Another part of the run has ended it."""


class IOThreads:
    """Prepares requests and records outcomes.

    ``check`` says why a request can't be run, or None; ``stopped`` whether the run is to end early. ``first`` are rows that make the
    first windows, a group each; ``fatal`` says of rows why they are not run at all.
    ``fail_fast``: the first row that fails ends the run with DataError (``on_error: fail``). ``whole_shards``: the rows of
    an open shard are all run, those recorded before too (deterministic mode, where a batch is repeated as it was).
    ``window_rows``: of as many shards as fit in there a window is made, of one at least, and never of two rounds.
    ``newest``: the version of the trainer's newest policy.
    """

    def __init__(
        self,
        job: Job,
        rows: Iterator[Row | BadRow],
        writer: Sink,
        recovered: Recovered,
        layout: Layout,
        check: Callable[[AnyRequest], str | None],
        stopped: Callable[[], bool],
        *,
        first: Sequence[Sequence[Row | BadRow]] = (),
        fatal: Mapping[int, str] | None = None,
        fail_fast: bool,
        whole_shards: bool,
        window_rows: int = WINDOW_ROWS,
        newest: Callable[[], int] = lambda: 0,
    ):
        self._job, self._rows, self._writer, self._recovered, self._check = job, rows, writer, recovered, check
        self._layout, self._stopped, self._whole = layout, stopped, whole_shards
        self._window_shards = 1 if whole_shards else max(1, window_rows // layout.rows_per_shard)
        self._first, self._fatal = first, fatal or {}
        self._windows: Queue[list[AnyRequest] | None] = Queue(1)
        self._outcomes: Queue[_Posted] = Queue(OUTCOMES)
        self._stop, self._abandoned = threading.Event(), threading.Event()
        self._recorder = Recorder(job, writer, recovered, layout, self._rated, self._ends, newest=newest, fail_fast=fail_fast)
        self.failure: BaseException | None = None
        self._preparing = threading.Thread(target=self._guarded, args=(self._prepare,), name="prepare", daemon=True)
        self._recording = threading.Thread(target=self._guarded, args=(self._record,), name="record", daemon=True)
        self._recording.start()
        self._preparing.start()

    # -------------------------------------------------------------------------------------- for the model's thread

    @property
    def failed(self) -> bool:
        """True when preparing or recording has failed; ``close`` raises what it was."""
        return self.failure is not None

    def next_window(self, wait: bool) -> list[AnyRequest] | None:
        """The requests of the next rows; an empty list while they are not ready (unless told to wait), None behind the last."""
        while not (self.failed or self._stopped()):
            try:
                return self._windows.get(timeout=0.2) if wait else self._windows.get_nowait()
            except Empty:
                if not wait:
                    return []
        return None

    def put(self, outcome: Outcome) -> None:
        """Takes over an outcome; waits while too many are not recorded yet."""
        self._post(outcome)

    @property
    def full(self) -> bool:
        """True when the next outcome has to wait until others are recorded."""
        return self._outcomes.full()

    def flush(self) -> bool:
        """Returns True when all that was put before is recorded and on the disk, False when it can't be. For any thread."""
        done = threading.Event()
        self._post(done)
        while not done.wait(0.05) and not self.failed and self._writer.running:
            pass
        return not (self.failed or self._writer.broken)

    def abandon(self) -> None:
        """Says that the model's work has failed: ``close`` then waits for no group that is not rated yet."""
        self._abandoned.set()

    def close(self) -> None:
        """Records what was put, ends both threads, and raises what went wrong in them."""
        self._stop.set()
        self._preparing.join()
        with suppress(StoppedError):
            self._post(None)
        self._recording.join()
        self._recorder.close()
        if self.failure is not None:
            raise self.failure

    # ------------------------------------------------------------------------------------------------- the threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoppedError:
            return
        except BaseException as error:
            self.failure = self.failure or error

    def _post(self, item: _Posted) -> None:
        """Puts for the recording thread, without waiting forever for one that has failed."""
        while True:
            try:
                self._outcomes.put(item, timeout=0.2)
                return
            except Full:
                if not self._recording.is_alive():
                    raise StoppedError from None

    def _ends(self) -> bool:
        """Whether the run ends early, for whatever reason."""
        return self._abandoned.is_set() or self.failed or self._stopped()

    def _rated(self) -> None:
        """Wakes the recording thread; one that has outcomes to record looks by itself."""
        with suppress(Full):
            self._outcomes.put_nowait(_RATED)

    def _prepare(self) -> None:
        """Rows to windows of requests; a window ends with a shard. Before them the groups of ``first``."""
        for group in self._first:
            self._put_window([request for row in group for request in self._requests(row)])
        prepared = {row.position for group in self._first for row in group}
        window: list[AnyRequest] = []
        ends = None
        for row in self._rows:
            if self._stop.is_set():
                raise StoppedError
            if row.position in prepared:
                continue
            shard = self._layout.shard_of(row.position)
            if ends is not None and shard >= ends:
                if window:
                    self._put_window(window)
                window, ends = [], None
            if ends is None:
                ends = min(shard + self._window_shards, (self._layout.round_of(row.position) + 1) * self._layout.shards_a_round)
            window += self._requests(row)
        if window:
            self._put_window(window)
        self._put_window(None)

    def _put_window(self, window: list[AnyRequest] | None) -> None:
        while not self._stop.is_set():
            try:
                self._windows.put(window, timeout=0.2)
                return
            except Full:
                continue
        raise StoppedError

    def _requests(self, row: Row | BadRow) -> list[AnyRequest]:
        """A row's requests, less what is recorded already; a row that cannot be done goes to the errors."""
        shard, place = self._recovered.done.get(self._layout.shard_of(row.position)), self._layout.row_of(row.position)
        if shard is not None and shard.has_failed(place) and not (self._whole and self._job.grouping is not None):
            self._post((row.position, 1))
            return []
        if shard is not None and shard.is_resolved(place) and not self._whole:
            return []
        done = shard.samples_of(place) if shard is not None else set[int]()
        if recorded := bool(done) and self._job.grouping is not None:
            # A group stands as it is: n may be another by now, as the user vouched for, or as the row says.
            self._post((row.position, len(done)))
            if not self._whole:
                return []
        if isinstance(row, BadRow):
            self._quarantine(Failure(row.position, row.key, None, "read", "UnreadableRow", row.message, row.text), done, None)
            return []
        try:
            requests = self._job.requests(row)
        except RowError as error:
            self._quarantine(row_failure(row, error.stage, type(error).__name__, str(error)), done, None)
            return []
        if problem := self._problem(row.position, requests):
            self._quarantine(row_failure(row, *problem), done, {index for request in requests for index in request.samples})
            return []
        if not recorded:
            self._post((row.position, sum(len(r.samples) for r in requests)))
        left = [kept for r in requests if (kept := r.without(set() if self._whole else done)).samples]
        for request in left:
            self._recorder.expect(row, request)
        return left

    def _quarantine(self, failure: Failure, done: set[int], asked: set[int] | None) -> None:
        """Posts a row that cannot be run: as a whole, or where samples of it are recorded sample by sample, those that are missing.

        It could be run then: the input, the settings or the room for it were others, or the process died of it. ``asked``: the row's
        samples, None where they cannot be known: all up to the last recorded, or as many as every row has. Where each row says
        itself how many, one behind the last stands for those that may be missing.
        """
        shard = self._recovered.done.get(self._layout.shard_of(failure.row))
        if shard is not None and shard.is_resolved(self._layout.row_of(failure.row)):
            return
        if done and self._job.grouping is not None:
            return
        if not done:
            self._post(failure)
            return
        if asked is None:
            asked = set(range(max(self._job.samples or 0, max(done) + 1)))
            if self._job.samples is None and asked == done:
                asked.add(len(done))
        missing = sorted(asked - done)
        self._post((failure.row, len(asked)))
        for sample in missing:
            self._post(replace(failure, sample=sample))

    def _problem(self, row: int, requests: list[AnyRequest]) -> tuple[str, str, str] | None:
        """Stage, class and message of what keeps a row from being run, or None."""
        if row in self._fatal:
            stage = "generate" if any(isinstance(request, Request) for request in requests) else "score"
            return stage, "EngineAborted", self._fatal[row]
        found = next((problem for request in requests if (problem := self._check(request))), None)
        return None if found is None else ("too_long", "RowError", found)

    def _record(self) -> None:
        """Outcomes to records; pairs are (position, number of its records), an event waits for what came before it."""
        while True:
            outcome = self._outcomes.get()
            if outcome is None:
                self._recorder.record_rated(0)
                return
            self._recorder.record_rated(RATED_AT_ONCE)
            if isinstance(outcome, tuple):
                self._writer.admit(*outcome)
            elif isinstance(outcome, threading.Event):
                self._writer.flush(outcome.set)
            elif not isinstance(outcome, str):
                self._recorder.record(outcome)
