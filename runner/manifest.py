"""The run directory: who may use it, what run it belongs to, and its small files.

Opens it under a lock, binds it to one identity for good, and refuses what is not its own. Knows nothing of how rows are
done, and never removes a file that it cannot name as the project's.
"""

import fcntl
import json
import logging
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from .drift import covered_rows, identity_drift, inputs_drift, without_consequences
from .durable import append_line, atomic_write, fsync_folder, mend_lines, room_on
from .errors import DriftError, RunDirError
from .paths import OWN_FILES, OWN_JOURNALS, OWN_PARTS, RunPaths
from .recovery import Recovered, recover

log = logging.getLogger("mlx_bulk")

SCHEMA_VERSION = 1

_NOT_CONTENT = {".lock", ".DS_Store"}
_LOCK_MARK = "mlx-bulk run"


@dataclass(slots=True)
class RunDir(RunPaths):
    """An open run directory; a context manager that holds its lock."""

    descriptor: int

    @classmethod
    def open(cls, path: Path, overwrite: bool = False) -> Self:
        """Creates or continues the run directory ``path``; ``overwrite`` removes the run that is there first.

        Raises RunDirError where another process has it open, where the folder holds something that is not a run (which is
        left as it is), or where it cannot be made.
        """
        try:
            with room_on(path):
                _refuse_strangers(path)
                path.mkdir(parents=True, exist_ok=True)
                run = cls(path, _lock(path / ".lock"))
        except FileExistsError as error:
            raise RunDirError(f"{path}: is a file; expected a folder for the run. Choose another --output.") from error
        except OSError as error:
            raise RunDirError(f"{path}: cannot be used as an output folder ({error}). Choose another --output.") from error
        try:
            with room_on(path):
                if overwrite:
                    run._remove_run()
                for folder in (run.results, run.errors, run.journal):
                    folder.mkdir(exist_ok=True)
                fsync_folder(path)
                mend_lines(run.sessions)
                mend_lines(run.metrics)
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Gives the lock back. The lock file stays: removing it would let two processes lock two files of one name."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def bind(self, run: dict[str, Any]) -> None:
        """Writes ``run`` to run.json where nothing is finished yet; else holds it against what is stored.

        ``run["identity"]`` (flat: config keys and fingerprints -> JSON values) must be equal; ``run["inputs"]`` (see
        ``drift.inputs_drift``) equal or an extension, which is then stored. The rest is not compared.
        Raises DriftError with a line a difference, RunDirError where run.json is missing beside finished work or unreadable.
        """
        finished = self.commits.exists() or any(self.journal.iterdir())
        if finished and not self.run.exists():
            raise RunDirError(f"{self.root}: has finished rows but no run.json to say whose. Restore it, or use --overwrite.")
        stored = self._stored() if self.run.exists() else None
        if stored is None or not finished:  # nothing is done yet: a first start that failed binds nobody
            self._store({"schema_version": SCHEMA_VERSION, **run})
            return
        lines = without_consequences(identity_drift(stored["identity"], run["identity"]) + inputs_drift(stored["inputs"], run["inputs"]))
        if lines:
            raise DriftError(
                f"{self.root}: this run was started with something else:\n"
                + "".join(f"  {line}\n" for line in lines)
                + "Go back to what the run has, choose another --output, or start over with --overwrite (this removes the run's results)."
            )
        if stored["inputs"] != run["inputs"]:
            if (had := covered_rows(stored["inputs"])) != (has := covered_rows(run["inputs"])):
                log.info("%s: the input gave %d rows and gives %d now; the run is extended", self.root, had, has)
            self._store({**stored, "inputs": run["inputs"]})

    def recover(self, rows: int, rows_per_shard: int, schema: pa.Schema, check: bool = True) -> Recovered:
        """What is already done of ``rows`` input rows; see ``recovery.recover``. Call it after ``bind``."""
        return recover(self, rows, rows_per_shard, schema, check)

    def session(self, info: dict[str, Any]) -> None:
        """Notes a start in sessions.jsonl: versions, host, device, free settings."""
        append_line(self.sessions, {"event": "start", "time": _now(), "pid": os.getpid(), **info})

    def session_ended(self, info: dict[str, Any]) -> None:
        """Notes how the session that started last has ended."""
        append_line(self.sessions, {"event": "end", "time": _now(), "pid": os.getpid(), **info})

    def add_metrics(self, values: dict[str, Any]) -> None:
        """Appends one interval's line to metrics.jsonl."""
        append_line(self.metrics, {"time": _now(), **values})

    def write_summary(self, values: dict[str, Any]) -> None:
        """Writes summary.json: what the last line of the run said."""
        atomic_write(self.summary, json.dumps(values, indent=2).encode() + b"\n")

    def _store(self, run: dict[str, Any]) -> None:
        atomic_write(self.run, json.dumps(run, indent=2).encode() + b"\n")

    def _stored(self) -> dict[str, Any]:
        stored = _read_run(self.run)
        if stored is None:
            raise RunDirError(f"{self.run}: is not readable as a run's description. Restore it, or start over with --overwrite.")
        if stored["schema_version"] != SCHEMA_VERSION:
            raise RunDirError(
                f"{self.run}: has schema version {stored['schema_version']}, this mlx-bulk reads {SCHEMA_VERSION}. "
                "Continue with the version that started the run (see sessions.jsonl), or choose another --output."
            )
        return stored

    def _remove_run(self) -> None:
        """Removes the run's files. run.json goes last: cut short, what is left still belongs to the old run."""
        self.commits.unlink(missing_ok=True)
        for folder, own in ((self.journal, OWN_JOURNALS), (self.results, OWN_PARTS), (self.errors, OWN_PARTS)):
            for file in folder.iterdir() if folder.is_dir() else ():
                if own.fullmatch(file.name):
                    file.unlink()
        for file in [self.root / name for name in OWN_FILES] + list(self.root.glob("stdin*")):
            if file.is_file():
                file.unlink()
        fsync_folder(self.root)
        self.run.unlink(missing_ok=True)


def _refuse_strangers(path: Path) -> None:
    """Raises RunDirError for a folder that holds something but is not a run."""
    if not path.is_dir() or not (names := {entry.name for entry in path.iterdir()} - _NOT_CONTENT):
        return
    if _read_run(path / "run.json") is None and _LOCK_MARK not in _read_text(path / ".lock"):
        shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        raise RunDirError(f"{path}: is not an mlx-bulk run, it holds {shown}. Choose another --output, or an empty folder.")


def _read_run(path: Path) -> dict[str, Any] | None:
    """What run.json says, or None where it is not one of ours."""
    try:
        run = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) and {"schema_version", "identity", "inputs"} <= run.keys() else None


def _lock(path: Path) -> int:
    """An open descriptor that holds the lock; the file then says who we are. Raises RunDirError where another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = json.dumps({"file": _LOCK_MARK, "pid": os.getpid(), "host": socket.gethostname(), "since": _now()})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode() + b"\n", 0)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunDirError(f"{path.parent}: {_holder(path)} is working here. Wait for it, stop it, or choose another --output.") from error
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _holder(path: Path) -> str:
    with suppress(ValueError, KeyError, TypeError):
        holder = json.loads(_read_text(path))
        return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    return "another process"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
