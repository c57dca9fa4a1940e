"""Finds the status of a run, also while it runs: what is done, whether it is at work, how fast, and why rows failed.

Takes no lock, changes nothing, and reads no more of the results than their count. ``jobs/status`` shows it as text.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..core.errors import DROP, RunDirError
from ..core.shard_layout import total_rows
from ..files.checked_lines import damaged_lines
from ..files.folder_lock import Holder, holder
from ..store.commit_log import CommitLog, read_commits
from ..store.paths import RunPaths
from .failures import ErrorKind, error_kinds, refused_policies
from .history import History, Session, history
from .journal_rows import journaled_rows, samples_of_rows
from .run_files import stored_run, stored_statistics
from .worker_parts import WorkerPart, worker_parts

State = Literal["running", "starting", "complete", "stopped", "failed", "killed", "not begun"]


@dataclass(slots=True)
class Status:
    """The status of a run. config: the job's settings in run.json; cwd: where it was started; of: all its rows. None where damaged.

    rows: resolved ones. committed: those of them that are committed. records: committed ones. errors: with those not committed yet.
    refused_policies: those that could not be loaded. seconds_left: by the speed of the last ten minutes. alive: the last sign of life.
    statistics: stats.arrow of a complete run. notes: damaged files, an unfinished retry, an unfinished --overwrite.
    workers: empty where the run had none.
    """

    run: Path
    state: State
    holder: Holder | None
    config: dict[str, Any] | None
    cwd: str | None
    rows: int
    of: int | None
    committed: int
    records: int
    errors: int
    kinds: list[ErrorKind]
    refused_policies: int
    history: History
    alive: datetime | None
    seconds_left: float | None
    statistics: pa.Table | None = None
    notes: list[str] = field(default_factory=list[str])
    workers: list[WorkerPart] = field(default_factory=list[WorkerPart])

    @property
    def dropped(self) -> int:
        """Groups among the errors that were left out on purpose, as far as ``kinds`` counts them."""
        return min(self.errors, sum(kind.count for kind in self.kinds if kind.stage == DROP))

    @property
    def last(self) -> Session | None:
        """The last start."""
        return self.history.sessions[-1] if self.history.sessions else None


def run_status(run: Path) -> Status:
    """Reads the status of the run directory ``run``. Raises RunDirError where it is none."""
    paths, notes = RunPaths(run), list[str]()
    working, log, past = holder(run), read_commits(paths), history(paths)
    stored = _stored(paths, working is not None, notes)
    for path in (paths.commits, paths.sessions, paths.metrics, paths.workers, paths.policy_events):
        if damaged := damaged_lines(path):
            lines = _counted(len(damaged), "line")
            notes.append(f"{path.name}: left out here, as they are damaged: {lines}; the next start sets them aside")
    if paths.doomed.exists():
        notes.append("what lies here is an older run, which --overwrite is to remove; the next start does that")
    if log.retries:
        shards = _counted(len(log.retries), "shard")
        notes.append(f"the errors of {shards} are to be done again, as --retry-errors asked; any start does that")
    of = None if stored is None else total_rows(stored)
    state = _state(working, log, of, past)
    journaled = None if stored is None else journaled_rows(paths, log, samples_of_rows(stored["config"], paths))
    rows, errors = _resolved(state, log, past, journaled or (0, 0))
    return Status(
        run,
        state,
        working,
        None if stored is None else stored["config"],
        None if stored is None else stored["cwd"],
        rows,
        of,
        sum(commit.rows for commit in log.commits.values()),
        sum(commit.records for commit in log.commits.values()),
        errors,
        error_kinds(paths, log, notes),
        refused_policies(paths),
        past,
        _alive(paths, past),
        _seconds_left(state, None if of is None else of - rows, past),
        stored_statistics(run) if state == "complete" else None,
        notes,
        worker_parts(paths),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _stored(paths: RunPaths, working: bool, notes: list[str]) -> dict[str, Any] | None:
    """Reads run.json; None, with a note, where it is damaged, or not written yet by a run that still reads its input."""
    try:
        return stored_run(paths.root)
    except RunDirError:
        if paths.run.is_file() and (paths.commits.exists() or paths.sessions.exists()):
            notes.append("run.json: is damaged, so how many rows the run has is not known; the next start rebuilds it")
        elif paths.run.exists() or not paths.journal.is_dir():
            raise
        elif not working:
            notes.append("run.json is not there: each start was refused, or broken off, before its first row")
        return None


def _state(working: Holder | None, log: CommitLog, of: int | None, past: History) -> State:
    last = past.sessions[-1] if past.sessions else None
    if working is not None:
        begun = last is not None and (working.pid is None or (last.pid == working.pid and last.ended is None))
        return "running" if begun else "starting"
    if log.closing is not None if of is None else log.is_complete(of):
        return "complete"
    if last is None:
        return "killed" if log.commits else "not begun"
    if last.ended is None:
        return "killed"
    return "stopped" if last.how in ("complete", "stopped", "KeyboardInterrupt") else "failed"


def _resolved(state: State, log: CommitLog, past: History, journaled: tuple[int, int]) -> tuple[int, int]:
    """Returns resolved rows and errors, by the last line that the run wrote about itself, or by what it has written since."""
    rows, errors = sum(commit.rows for commit in log.commits.values()), sum(commit.errors for commit in log.commits.values())
    if state == "complete" or not past.sessions:
        return rows, errors
    rows, errors = rows + journaled[0], errors + journaled[1]
    noted = [counts for session in past.sessions if (counts := _noted(session)) is not None]
    if not noted:
        return rows, errors
    # Errors that are done again are not open yet by the commits: a run that does them says itself how far it is.
    says_itself = state == "stopped" and _noted(past.sessions[-1]) is not None  # one that ended before its first row says nothing
    if says_itself or (state == "running" and log.retries):
        return noted[-1]
    return max(rows, noted[-1][0]), max(errors, noted[-1][1])


def _noted(session: Session) -> tuple[int, int] | None:
    """Returns the run's rows and errors by the last line of a session; None where it wrote none."""
    if session.rows is not None and session.errors is not None:
        return session.rows, session.errors
    return (session.points[-1].rows, session.points[-1].errors) if session.points else None


def _alive(paths: RunPaths, past: History) -> datetime | None:
    """Returns when the run last wrote something."""
    written: list[datetime] = []
    for file in (paths.commits, *paths.journal.glob("*")):
        with suppress(FileNotFoundError):  # not yet, or committed in this moment
            written.append(datetime.fromtimestamp(file.stat().st_mtime, UTC))
    noted = [time for session in past.sessions for time in (session.started, session.ended) if time is not None]
    return max([*written, *noted, *(point.time for point in past.points[-1:])], default=None)


def _seconds_left(state: State, rows: int | None, past: History) -> float | None:
    if state == "complete" or rows is None or (speed := past.rows_per_second) is None:
        return None
    seconds = rows / speed
    if state == "running":  # some time has passed since the last line
        seconds -= (datetime.now(UTC) - past.points[-1].time) / timedelta(seconds=1)
    return max(0.0, seconds)
