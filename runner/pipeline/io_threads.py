"""Runs two threads beside the model: one reads rows ahead and makes requests, one records outcomes behind it.

    rows ─► reading thread ─► windows ─► model ─► messages ─► recording thread ─► sink

Both queues are bounded, so the device waits neither for the tokenizer nor for the disk, and memory does not grow with the dataset: beside
the rows that the model has, those of one window are held, or being made.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from queue import Empty, Full, Queue

from ..core.outcomes import Outcome
from ..core.requests import AnyRequest, BadRow, Row
from ..core.shard_layout import Layout
from ..store.recovery import Recovered
from .group_rating import RATED_AT_ONCE, PendingGroups
from .job import Job
from .recorder import Recorder, Sink
from .row_requests import Admit, RecordedRows, RowRequests

OUTCOMES = 1024  # messages that may wait for the recording thread

_POLL_SECONDS = 0.2  # how often a thread that waits looks for a reason to stop


@dataclass(slots=True, frozen=True)
class SessionInput:
    """The input of a session: its job, its rows, and the records of earlier sessions.

    windows: rows that the model is given at once, see ``row_windows``. isolated: groups of rows; each makes a window of its own
    before all others, and its rows are left out there.
    """

    job: Job
    windows: Iterable[Iterable[Row | BadRow]]
    layout: Layout
    recovered: Recovered
    isolated: Sequence[Sequence[Row | BadRow]] = ()


@dataclass(slots=True, frozen=True)
class SessionRules:
    """The limits of a session.

    check: says why a request cannot be run, or None. stopped: returns True when the run is to end early. whole_shards: rows of an open
    shard are all run, recorded or not (deterministic mode repeats a batch as it was). fail_fast: the first row that fails ends the
    run with DataError (``on_error: fail``). fatal: says of a row's position why the row is not run any more.
    """

    check: Callable[[AnyRequest], str | None]
    stopped: Callable[[], bool]
    whole_shards: bool
    fail_fast: bool
    fatal: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass(slots=True, frozen=True)
class _Flush:
    """Message: save what came before, then set ``saved``."""

    saved: threading.Event


@dataclass(slots=True, frozen=True)
class _Rated:
    """Message: the ratings of a group have arrived."""


@dataclass(slots=True, frozen=True)
class _End:
    """Message: the last one."""


_Message = Outcome | Admit | _Flush | _Rated | _End


class _Stopped(Exception):
    """Another part of the run has ended it."""


class IOThreads:
    """The two threads of one session, started at once. ``close`` must be called, whatever happens.

    newest_version: returns the version of the trainer's newest policy; it is called in the recording thread.
    """

    def __init__(self, session: SessionInput, rules: SessionRules, sink: Sink, newest_version: Callable[[], int] = lambda: 0):
        self._session, self._rules, self._sink = session, rules, sink
        job, recorded = session.job, RecordedRows(session.recovered, session.layout)
        groups = None if job.grouping is None else PendingGroups(job.grouping, self._rated, self.stopped, newest_version)
        self._recorder = Recorder(job, sink, recorded, groups, rules.fail_fast)
        self._row_requests = RowRequests(job, recorded, rules.check, rules.fatal, rules.whole_shards)
        self._windows: Queue[list[AnyRequest] | None] = Queue(1)
        self._room = threading.Semaphore()  # for a window that the model has not taken
        self._messages: Queue[_Message] = Queue(OUTCOMES)
        self._closing, self._abandoned = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._reading = threading.Thread(target=self._guarded, args=(self._read,), name="prepare", daemon=True)
        self._recording = threading.Thread(target=self._guarded, args=(self._record,), name="record", daemon=True)
        self._recording.start()
        self._reading.start()

    # -------------------------------------------------------------------------------------- for the model's thread

    @property
    def failed(self) -> bool:
        """True when one of the threads has failed; ``close`` raises its error."""
        return self._failure is not None

    def stopped(self) -> bool:
        """Returns True when the run ends early, for any reason. For any thread."""
        return self._abandoned.is_set() or self.failed or self._rules.stopped()

    def next_window(self, wait: bool) -> list[AnyRequest] | None:
        """Returns the requests of the next rows, an empty list while they are not ready (unless ``wait``), None after the last."""
        while not (self.failed or self._rules.stopped()):
            try:
                window = self._windows.get(timeout=_POLL_SECONDS) if wait else self._windows.get_nowait()
            except Empty:
                if not wait:
                    return []
            else:
                self._room.release()
                return window
        return None

    def put(self, outcome: Outcome) -> None:
        """Hands an outcome to the recording thread; waits while too many are not recorded yet."""
        self._post(outcome)

    @property
    def full(self) -> bool:
        """True when the next ``put`` has to wait until others are recorded."""
        return self._messages.full()

    def flush(self) -> bool:
        """Returns True when all that was put before is on the disk, False when it cannot be saved. For any thread."""
        saved = threading.Event()
        self._post(_Flush(saved))
        while not saved.wait(0.05) and not self.failed and self._sink.running:
            pass
        return not (self.failed or self._sink.broken)

    def abandon(self) -> None:
        """Notes that the model's work has failed: ``close`` then waits for no group that is not rated yet."""
        self._abandoned.set()

    def close(self) -> None:
        """Records what was put, ends both threads, and raises the first error of either."""
        self._closing.set()
        self._reading.join()
        with suppress(_Stopped):
            self._post(_End())
        self._recording.join()
        self._recorder.close()
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------------------------------------- both threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _Stopped:
            return
        except BaseException as error:
            self._failure = self._failure or error

    def _post(self, message: _Message) -> None:
        """Hands a message to the recording thread. Raises _Stopped where that thread has failed and the queue is full."""
        while True:
            try:
                self._messages.put(message, timeout=_POLL_SECONDS)
                return
            except Full:
                if not self._recording.is_alive():
                    raise _Stopped from None

    def _rated(self) -> None:
        """Wakes the recording thread. With a full queue it is awake, and looks at the ratings by itself."""
        with suppress(Full):
            self._messages.put_nowait(_Rated())

    # ------------------------------------------------------------------------------------------- the reading thread

    def _read(self) -> None:
        """Makes windows of requests: one for each isolated group, then those of all other rows."""
        isolated = self._session.isolated
        for group in isolated:
            self._await_room()
            self._windows.put(self._requests(group))
        done = {row.position for group in isolated for row in group}
        self._await_room()
        for window in self._session.windows:
            if requests := self._requests(row for row in window if row.position not in done):
                self._windows.put(requests)
                self._await_room()
        self._windows.put(None)

    def _requests(self, rows: Iterable[Row | BadRow]) -> list[AnyRequest]:
        requests: list[AnyRequest] = []
        for row in rows:
            if self._closing.is_set():
                raise _Stopped
            prepared = self._row_requests.prepare(row)
            for message in prepared.messages:
                self._post(message)
            if isinstance(row, Row):
                for request in prepared.requests:
                    self._recorder.expect(row, request)
            requests += prepared.requests
        return requests

    def _await_room(self) -> None:
        """Waits until the model has taken all windows. A window that nobody waits for would only take memory."""
        while not self._room.acquire(timeout=_POLL_SECONDS):
            if self._closing.is_set():
                raise _Stopped

    # ----------------------------------------------------------------------------------------- the recording thread

    def _record(self) -> None:
        """Takes messages in turn until the last; before each, it records the groups that are rated."""
        while True:
            message = self._messages.get()
            self._recorder.record_rated(0 if isinstance(message, _End) else RATED_AT_ONCE)
            match message:
                case _End():
                    return
                case _Rated():
                    pass
                case Admit():
                    self._sink.admit(message.position, message.samples)
                case _Flush():
                    self._sink.flush(message.saved.set)
                case _:
                    self._recorder.record(message)


def row_windows(rows: Iterable[Row | BadRow], layout: Layout, size: int) -> Iterator[Iterator[Row | BadRow]]:
    """Cuts ``rows``, which come in the order of their positions, into windows. size: see ``shard_layout.window_size``."""
    return (window for _, window in groupby(rows, key=_WindowEnd(layout, size)))


class _WindowEnd:
    """Key of ``groupby``: the position before which a row's window ends. A window never holds rows of two rounds."""

    def __init__(self, layout: Layout, size: int):
        self._layout, self._size, self._end = layout, size, 0

    def __call__(self, row: Row | BadRow) -> int:
        if row.position >= self._end:
            begin = row.position - row.position % min(self._size, self._layout.rows_per_shard)
            round_end = (self._layout.round_of(row.position) + 1) * self._layout.positions
            self._end = min(begin + self._size, round_end)
        return self._end
