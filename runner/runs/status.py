"""``mlx-bulk status``: what is done of a run, whether it is at work, how fast, and why rows failed; also while it runs.

Takes no lock, reads no more of the results than their count, and changes nothing. How it reads on a terminal is
``status_text.py``'s.
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
from .run_files import stored_run, stored_statistics

State = Literal["running", "starting", "complete", "stopped", "failed", "killed", "not begun"]


@dataclass(slots=True)
class Status:
    """A run as it stands. config: the job's settings as run.json has them, cwd: where it was started; None where that is damaged.

    rows: resolved ones, of ``of`` (None where run.json is damaged), committed ones among them; records, errors: likewise, those
    that are not committed yet counted in with the errors. refused: policies that could not be loaded. seconds_left: by the speed
    of the last ten minutes. alive: the last sign of life. statistics: stats.arrow of a complete run. notes: files that are damaged,
    and a retry that is not finished.
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

    @property
    def dropped(self) -> int:
        """Groups among the errors that were left out on purpose, as far as ``kinds`` tells them apart."""
        return min(self.errors, sum(kind.count for kind in self.kinds if kind.stage == DROP))

    @property
    def last(self) -> Session | None:
        """The last start."""
        return self.history.sessions[-1] if self.history.sessions else None


def run_status(run: Path) -> Status:
    """How the run directory ``run`` stands. Raises RunDirError where it is none."""
    paths, notes = RunPaths(run), list[str]()
    working, log, past = holder(run), read_commits(paths), history(paths)
    stored = _stored(paths, working is not None, notes)
    for path in (paths.commits, paths.sessions, paths.metrics, paths.policy_events):
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
    rows, errors = _resolved(state, log, past)
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
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _stored(paths: RunPaths, working: bool, notes: list[str]) -> dict[str, Any] | None:
    """What run.json says; None, with a note, where it is damaged, or not written yet by a run that reads its input."""
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


def _resolved(state: State, log: CommitLog, past: History) -> tuple[int, int]:
    """Rows and errors, those in journals too: by the latest that the run has said of itself."""
    committed = sum(commit.rows for commit in log.commits.values()), sum(commit.errors for commit in log.commits.values())
    if state == "complete" or not past.sessions:
        return committed
    said = [figures for session in past.sessions if (figures := _said(session)) is not None]
    if not said:
        return committed
    # A process that died may have committed more than its last line of metrics says.
    rows, errors = said[-1]
    return (rows, errors) if state in ("running", "stopped") else (max(rows, committed[0]), max(errors, committed[1]))


def _said(session: Session) -> tuple[int, int] | None:
    """The run's rows and errors by the last that a session has said of them; None where it has not come to that."""
    if session.rows is not None and session.errors is not None:
        return session.rows, session.errors
    return (session.points[-1].rows, session.points[-1].errors) if session.points else None


def _alive(paths: RunPaths, past: History) -> datetime | None:
    """When the run last said or wrote something."""
    written: list[datetime] = []
    for file in (paths.commits, *paths.journal.glob("*")):
        with suppress(FileNotFoundError):  # not yet, or committed in this moment
            written.append(datetime.fromtimestamp(file.stat().st_mtime, UTC))
    said = [time for session in past.sessions for time in (session.started, session.ended) if time is not None]
    return max([*written, *said, *(point.time for point in past.points[-1:])], default=None)


def _seconds_left(state: State, rows: int | None, past: History) -> float | None:
    if state == "complete" or rows is None or (speed := past.rows_per_second) is None:
        return None
    seconds = rows / speed
    if state == "running":  # some of it has gone by since the last line
        seconds -= (datetime.now(UTC) - past.points[-1].time) / timedelta(seconds=1)
    return max(0.0, seconds)
