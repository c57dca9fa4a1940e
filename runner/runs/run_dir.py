"""Opens a run directory under a lock, binds it to one run for good, and writes its small files.

Refuses folders and configs of another run. Never removes a file that is not named as one of ours. Does not know how rows are done.
"""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ..core.errors import DriftError, RunDirError
from ..core.shard_layout import Layout, covered_rows, rounds_of
from ..data.spooled_stdin import SPOOL_NAMES
from ..files.atomic import atomic_write, fsync_folder, replacing
from ..files.checked_json import digest, read_document, write_document
from ..files.checked_lines import append_line, read_lines, salvage_lines
from ..files.folder_lock import LOCK, discard, hold, missing_folders, now, unlock
from ..formats.source import WAITING
from ..store.commit_log import read_commits
from ..store.open_journals import journal_files
from ..store.paths import OWN_FILES, OWN_FOLDERS, OWN_JOURNALS, OWN_PARTS, OWN_POLICIES, RunPaths
from ..store.recovery import Recovered, recover, require_covered
from .drift import KeyDrift, differences, inputs_content, inputs_key, refusal, require_adoptable, values_at
from .run_files import SCHEMA_VERSION, holds_rows, is_over_no_rows, read_run, unchecked_run, with_nonce_of
from .worker_parts import WorkerPart

log = logging.getLogger("mlx_bulk")


MARK = "mlx-bulk run"


@dataclass(slots=True, frozen=True)
class Start:
    """Options of a start beside the config.

    overwrite: removes the run that is there, once the new one is known to be sound. retry_errors: does rows in quarantine again.
    adopt: keys of the identity, or ``data.path``, that may have changed; the user vouches that finished rows hold under the new value
    too. words: of the command line after ``mlx-bulk``, noted so that the run can be continued.
    """

    overwrite: bool = False
    retry_errors: bool = False
    adopt: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(slots=True)
class RunDir(RunPaths):
    """An open run directory. As a context manager it gives its lock back at the end, and removes a new folder that no run was bound to.

    made: the folders that ``open`` made for it; None where a run was begun here before. identity, input_content: hex digests of the
    run's identity and of its inputs' content, "" until ``bind``. rounds: passes over the inputs. nonce: tells this run from others of the
    same identity that the folder held before; "" for a run of an older version.
    """

    descriptor: int
    made: tuple[Path, ...] | None = None
    identity: str = ""
    input_content: str = ""
    rounds: int = 1
    nonce: str = ""

    @classmethod
    def open(cls, path: Path, is_ours: Callable[[Path], bool] | None = None) -> Self:
        """Creates or continues the run directory ``path``, and holds its lock.

        is_ours: whether a folder that was begun without a lock may become a run; by default where it holds a run.json of ours.
        Raises RunDirError where another process has it open, where the folder holds something that is not a run (it is then
        left as it is), or where it cannot be made.
        """
        paths, made = RunPaths(path), None if (path / LOCK).exists() else missing_folders(path)
        return cls(path, hold(path, MARK, is_ours or _is_run, OWN_FOLDERS, prepare=lambda: _prepare(paths)), made)

    def close(self) -> None:
        """Gives the lock back."""
        unlock(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and self.made is not None and not self.run.exists():
            discard(self.root, self.descriptor, OWN_FOLDERS, self.made)
        else:
            self.close()

    def bind(self, run: dict[str, Any], adopt: tuple[str, ...] = (), accepted: Callable[[], None] = lambda: None) -> None:
        """Writes ``run`` to run.json where nothing is finished yet, or there were no rows; else compares it with what is stored.

        ``run["identity"]`` (flat: config keys and fingerprints -> JSON values) must be equal. ``run["inputs"]`` (see
        ``drift.inputs_drift``) must be equal or an extension, which is then stored. The rest is not compared. A run that is there keeps
        its "nonce"; that of ``run``, if it has one, is for a new run. Keys in ``adopt`` may differ: the user vouches that results under
        the old value may lie beside those under the new one, and for ``data.path`` that the finished rows are the rows now in their
        places. The new values are stored and noted. ``accepted`` is called when nothing prevents the start, before run.json is written.

        Raises DriftError with a line for each difference, or where rows are finished that the input no longer has; ConfigError for
        keys that cannot be adopted; RunDirError where run.json is missing beside finished work, of another version, or damaged beyond
        rebuilding. Nothing has changed then.
        """
        self.identity, self.input_content = digest(run["identity"]), digest(inputs_content(run["inputs"]))
        self.rounds = rounds_of(run)
        finished = self.commits.exists() or holds_rows(self)
        stored = self._stored(run, finished)
        identity_keys = run["identity"].keys() | (stored["identity"].keys() if stored else ())
        require_adoptable(adopt, {*identity_keys, inputs_key(run["inputs"])})
        new = run
        if stored is not None and (finished or "nonce" in stored):
            run = with_nonce_of(stored, run)
        self.nonce = run.get("nonce", "")
        if stored is None or not finished:  # nothing is done yet: a first start that failed binds no later one
            accepted()
            self._remove_policies()  # nothing was recorded of them: they may be of another training
            self._store(run)
            return
        drift = differences(stored, run)
        if any(difference.key not in adopt or difference.why_fixed is not None for difference in drift):
            if is_over_no_rows(self, stored):
                log.info("%s: the run that was there had an input without rows; this one takes its place", self.root)
                self.replace(new, adopt, accepted)
                return
            raise DriftError(f"{self.root}: {refusal(drift, adopt)}")
        if (rows := covered_rows(run["inputs"])) < covered_rows(stored["inputs"]):
            require_covered(self, Layout(rows, run["identity"]["batch.rows_per_shard"]))
        accepted()
        self._note_changes(stored, run, drift)
        if any(stored.get(name) != run.get(name) for name in ("identity", "inputs", "cwd")) or rounds_of(stored) != rounds_of(run):
            self._store(run)

    def replace(self, run: dict[str, Any], adopt: tuple[str, ...] = (), accepted: Callable[[], None] = lambda: None) -> None:
        """Removes the run that is there, and binds the folder to the new ``run``.

        Spooled rows that wait (see ``sources.keep_spooled``) belong to the new run. Raises ConfigError before anything is removed.
        """
        require_adoptable(adopt, run["identity"].keys())
        self._log_removal()
        self.doom()
        self._remove_run()
        self.bind(run, adopt, accepted)

    def doom(self) -> None:
        """Marks this run for removal, durably. The next start, with whatever options, replaces it."""
        atomic_write(self.doomed, b"")

    def recover(self, layout: Layout, schema: pa.Schema, retry_errors: bool = False) -> Recovered:
        """Finds what is already done of a run of this ``layout``; see ``recovery.recover``. Call it after ``bind``."""
        return recover(self, self.identity, layout, schema, retry_errors)

    def session(self, info: dict[str, Any]) -> None:
        """Notes a start in sessions.jsonl: versions, host, device, free settings."""
        self._note("start", {"pid": os.getpid(), **info})

    def session_ended(self, info: dict[str, Any]) -> None:
        """Notes how the last session ended."""
        append_line(self.sessions, {"event": "end", "time": now(), "pid": os.getpid(), **info})

    def add_lease(self, values: dict[str, Any]) -> None:
        """Appends a line to workers.jsonl: rows that a worker has finished, or begun again. Lines come with each message of a worker."""
        append_line(self.workers, {"time": now(), **values}, durable=False)

    def add_worker(self, values: dict[str, Any]) -> None:
        """Notes a worker of the last start in sessions.jsonl: its machine, versions and device."""
        append_line(self.sessions, {"event": "worker", "time": now(), **values})

    def write_workers(self, parts: Sequence[WorkerPart]) -> None:
        """Writes workers.json."""
        write_document(self.workers_now, {"workers": [part.values() for part in parts]})

    def add_metrics(self, values: dict[str, Any]) -> None:
        """Appends one interval's line to metrics.jsonl."""
        append_line(self.metrics, {"time": now(), **values})

    def write_statistics(self, table: pa.Table) -> None:
        """Writes stats.arrow."""
        with replacing(self.stats) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def write_summary(self, values: dict[str, Any]) -> None:
        """Writes summary.json, the figures of the closing line."""
        write_document(self.summary, values)

    def stored_summary(self) -> dict[str, Any] | None:
        """Reads summary.json; None where it is missing or damaged."""
        try:
            return read_document(self.summary)
        except (FileNotFoundError, ValueError):
            return None

    def _note(self, event: str, info: dict[str, Any]) -> None:
        """Appends a line to sessions.jsonl. It also holds what the run is from now on, so that run.json can be rebuilt."""
        identity = {"identity": self.identity, "inputs": self.input_content, "rounds": self.rounds}
        append_line(self.sessions, {"event": event, "time": now(), **identity, **info})

    def _note_changes(self, stored: dict[str, Any], run: dict[str, Any], adopted: list[KeyDrift]) -> None:
        """Logs and notes what changes with this start, before run.json is written."""
        for key in dict.fromkeys(difference.key for difference in adopted):
            log.warning("%s: adopted: %s", self.root, "; ".join(str(difference) for difference in adopted if difference.key == key))
            self._note("adopted", {"key": key, "old": values_at(key, stored), "new": values_at(key, run)})
        had, has = covered_rows(stored["inputs"]), covered_rows(run["inputs"])
        if has > had:
            log.info("%s: the input gave %d rows and gives %d now; the run is extended", self.root, had, has)
        if rounds_of(run) > rounds_of(stored):
            log.info("%s: the run had %d rounds and has %d now; it is extended", self.root, rounds_of(stored), rounds_of(run))
            self._note("extended", {"old_rounds": rounds_of(stored), "new_rounds": rounds_of(run)})
        if inputs_content(stored["inputs"]) != inputs_content(run["inputs"]) and all(
            difference.key != inputs_key(run["inputs"]) for difference in adopted
        ):
            self._note("extended", {"old_rows": had, "new_rows": has})

    def _store(self, run: dict[str, Any]) -> None:
        write_document(self.run, {"schema_version": SCHEMA_VERSION, **run})

    def _stored(self, run: dict[str, Any], finished: bool) -> dict[str, Any] | None:
        """Reads run.json; None where nothing binds this start. Rebuilds a damaged file from ``run`` where that is the same run."""
        if not self.run.exists():
            if finished:
                raise RunDirError(f"{self.root}: has finished rows but no run.json to say whose. Restore it, or use --overwrite.")
            return None
        try:
            stored = read_run(self.root)
        except ValueError:
            stored = unchecked_run(self.root)
            if stored is None or "check" in stored or stored["schema_version"] == SCHEMA_VERSION:
                return self._rebuilt(run) if finished else None
        if stored["schema_version"] != SCHEMA_VERSION:
            raise RunDirError(
                f"{self.run}: has schema version {stored['schema_version']}, this mlx-bulk reads {SCHEMA_VERSION}. "
                "Continue with the version that started the run (see sessions.jsonl), or choose another --output."
            )
        return stored

    def _rebuilt(self, run: dict[str, Any]) -> dict[str, Any]:
        """Writes ``run`` in place of a damaged run.json, if the last start noted the same identity and the same input."""
        noted = [(line["identity"], line["inputs"], line.get("rounds", 1)) for line in read_lines(self.sessions) if "inputs" in line]
        if noted[-1:] != [(self.identity, self.input_content, self.rounds)]:
            problem = "this config, model or input is not what the run had" if noted else "nothing there says what run this is"
            raise RunDirError(
                f"{self.run}: is damaged, and by sessions.jsonl {problem}. Restore the file, run the command that the run was last "
                "started with, or start over with --overwrite (this removes the run's results)."
            )
        log.warning("%s: was damaged; it is rebuilt, as sessions.jsonl shows that this is the same run", self.run)
        self._store(run)
        return read_run(self.root)

    def _log_removal(self) -> None:
        """Logs the loss of finished rows when an unfinished run is removed."""
        commits, journals = read_commits(self), len(journal_files(self))
        if commits.closing is None and (commits.commits or journals):
            rows = sum(commit.rows for commit in commits.commits.values())
            message = "%s: --overwrite removes a run that is not complete, with %d committed rows and %d open shards"
            log.info(message, self.root, rows, journals)

    def _remove_run(self) -> None:
        """Removes the run's files: run.json last, then the mark for removal. After a kill the next start goes on with it."""
        self.commits.unlink(missing_ok=True)
        for folder, own in ((self.journal, OWN_JOURNALS), (self.results, OWN_PARTS), (self.errors, OWN_PARTS)):
            for file in folder.iterdir() if folder.is_dir() else ():
                if own.fullmatch(file.name):
                    file.unlink()
        self._remove_policies()
        beside = [name for own in (*OWN_FILES, self.run.name, self.commits.name) for name in (f".{own}.tmp", f"{own}.damaged")]
        spooled = [name for own in SPOOL_NAMES.values() for name in (own, f".{own}.tmp", f".{own}{WAITING}.tmp")]
        drawn = self.root.glob(f".{self.report.name}.*.tmp")  # by processes that were killed
        for file in [*(self.root / name for name in (*OWN_FILES, *beside, *spooled)), *drawn]:
            if file.is_file():
                file.unlink()
        fsync_folder(self.root)
        self.run.unlink(missing_ok=True)
        fsync_folder(self.root)
        self.doomed.unlink(missing_ok=True)

    def _remove_policies(self) -> None:
        for kept in self.policies.iterdir() if self.policies.is_dir() else ():
            if OWN_POLICIES.fullmatch(kept.name):
                shutil.rmtree(kept) if kept.is_dir() else kept.unlink()


def _is_run(folder: Path) -> bool:
    return unchecked_run(folder) is not None


def _prepare(paths: RunPaths) -> None:
    """Makes the folders of a run, and cuts torn tails off the files that lines are appended to."""
    for folder in (paths.root, paths.results, paths.errors, paths.journal):
        folder.mkdir(exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):  # fail now, not when the first part is finished
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    fsync_folder(paths.root)
    for lines in (paths.sessions, paths.metrics, paths.workers, paths.policy_events):
        salvage_lines(lines)
