"""The run directory: who may use it, what run it belongs to, and its small files.

Opens it under a lock, binds it to one identity for good, and refuses what is not its own. Knows nothing of how rows are
done, and never removes a file that it cannot name as the project's.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from .drift import covered_rows, identity_drift, inputs_drift, without_consequences
from .durable import append_line, atomic_write, fsync_folder, mend_lines, room_on
from .errors import DriftError, RunDirError
from .locking import lock, now, refuse_strangers
from .paths import OWN_FILES, OWN_JOURNALS, OWN_PARTS, RunPaths
from .recovery import Recovered, recover

log = logging.getLogger("mlx_bulk")

SCHEMA_VERSION = 1

_MARK = "mlx-bulk run"


@dataclass(slots=True, frozen=True)
class Start:
    """How a run is to be started, beside its config.

    overwrite: the run that is there is removed first. retry_errors: rows in quarantine are done again. adopt: keys of the
    identity whose new value the user vouches for.
    """

    overwrite: bool = False
    retry_errors: bool = False
    adopt: tuple[str, ...] = ()


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
                refuse_strangers(path, _MARK, known=_read_run(path / "run.json") is not None)
                path.mkdir(parents=True, exist_ok=True)
                run = cls(path, lock(path, _MARK))
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

    def bind(self, run: dict[str, Any], adopt: tuple[str, ...] = ()) -> None:
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

    def recover(self, rows: int, rows_per_shard: int, schema: pa.Schema, retry_errors: bool = False) -> Recovered:
        """What is already done of ``rows`` input rows; see ``recovery.recover``. Call it after ``bind``."""
        return recover(self, rows, rows_per_shard, schema, retry_errors)

    def session(self, info: dict[str, Any]) -> None:
        """Notes a start in sessions.jsonl: versions, host, device, free settings."""
        append_line(self.sessions, {"event": "start", "time": now(), "pid": os.getpid(), **info})

    def session_ended(self, info: dict[str, Any]) -> None:
        """Notes how the session that started last has ended."""
        append_line(self.sessions, {"event": "end", "time": now(), "pid": os.getpid(), **info})

    def add_metrics(self, values: dict[str, Any]) -> None:
        """Appends one interval's line to metrics.jsonl."""
        append_line(self.metrics, {"time": now(), **values})

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


def _read_run(path: Path) -> dict[str, Any] | None:
    """What run.json says, or None where it is not one of ours."""
    try:
        run = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) and {"schema_version", "identity", "inputs"} <= run.keys() else None
