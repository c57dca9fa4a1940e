"""Audits a run by its input and its directory: finished shards, open shards, and faults.

Trusts neither sizes nor stamps: every byte is hashed before it is parsed. Takes no lock and changes nothing, so it may audit a run
that is at work. Memory does not grow with the rows. Knows no job kinds. The next start of the run mends what is wrong.
"""

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.data import DataConfig
from ...configs.explain import shown
from ..core.errors import BulkError, DataError
from ..core.shard_layout import Layout, covered_rows
from ..data.reader import read_rows
from ..data.rescan import current_scan, stored_data
from ..data.row_key import ChangedKey, changed_key
from ..data.scan_result import Scan
from ..files.checked_json import read_document
from ..files.checked_lines import damaged_lines
from ..files.file_stamp import sha256
from ..files.folder_lock import holder
from ..store.commit_log import Commit, CommitLog, read_commits
from ..store.open_journals import journal_files, uncommitted_journals
from ..store.paths import RunPaths, part_of
from ..store.results import finished_errors, finished_results
from .drift import INPUTS, inputs_drift
from .journal_rows import samples_of_rows
from .run_files import current_run
from .shard_audit import DamageError, count_shard

PAUSES = (0.1, 0.3, 1.0)  # seconds between looks at a run at work in which something seems wrong

_RESTORE = "put the input back as it was; a run over another input is a new one, with another --output"


@dataclass(slots=True, frozen=True)
class Finding:
    """A problem: where it is, what is wrong, and how to cure it."""

    place: str
    what: str
    cure: str


@dataclass(slots=True)
class Audit:
    """The contents of a run's directory, compared with its input.

    rows: of the input that the run covers, in each of ``rounds``. input_rows: what the input has now, None where it cannot be read.
    resolved: rows of committed, sound shards, of all rounds. records, errors (by stage and class): of these shards. journaled:
    finished records and failures of open shards. files, bytes: of committed parts. closed: commits.jsonl ends with a closing line.
    working: the process that is at work there, or empty.
    """

    run: Path
    job: str
    rows: int
    rounds: int = 1
    input_rows: int | None = None
    resolved: int = 0
    records: int = 0
    errors: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    journaled: int = 0
    open_shards: list[int] = field(default_factory=list[int])
    files: int = 0
    bytes: int = 0
    closed: bool = False
    working: str = ""
    problems: list[Finding] = field(default_factory=list[Finding])

    @property
    def total(self) -> int:
        """Rows of all rounds."""
        return self.rows * self.rounds

    @property
    def complete(self) -> bool:
        """True when every row is resolved once and nothing is wrong."""
        return self.closed and self.resolved == self.total and not (self.problems or self.open_shards)

    def note(self, place: Path | str, what: str, cure: str) -> None:
        """Notes a problem that the next start of the run cures."""
        self.problems.append(Finding(str(place), what, f"run the same command again: {cure}"))


def audit_run(run: Path, counting: Callable[[range], Iterable[int]] = iter) -> Audit:
    """Audits the run directory ``run``. Relative paths of its input start at the working directory.

    counting: is given the range of shards and yields them one by one, so that it can show progress. Raises RunDirError where the
    folder has no readable run.json.
    """
    paths, run_json = RunPaths(run), current_run(run)
    layout = Layout.of(run_json)
    audit = Audit(run, str(run_json["config"]["job"]), layout.rows, layout.rounds)
    _check_input(audit, run_json)
    _check_notes(audit, paths)
    samples, log, columns = samples_of_rows(run_json["config"], paths), read_commits(paths), list[pa.Schema]()
    for shard in counting(range(max(layout.shards, max(log.commits, default=-1) + 1))):
        if (commit := log.commits.get(shard)) is None:
            audit.open_shards.append(shard)
        else:
            _count_shard(audit, paths, commit, layout.rows_of(shard), samples, columns)
            if shard in log.retries and shard not in audit.open_shards:
                audit.open_shards.append(shard)
    return _rest_of(audit, paths)


def _rest_of(audit: Audit, paths: RunPaths) -> Audit:
    """Returns the audit with all but the committed shards. Looks again while a run at work seems to be wrong.

    It may have a part that it declares in a moment, or a frame that is half written.
    """
    whole = _look_at_rest(audit, paths)
    for pause in PAUSES:
        if not whole.working or len(whole.problems) == len(audit.problems):
            break
        time.sleep(pause)
        whole = _look_at_rest(audit, paths)
    return whole


def _look_at_rest(audit: Audit, paths: RunPaths) -> Audit:
    working, whole, log = holder(paths.root), copy.deepcopy(audit), read_commits(paths)  # the run may have gone on
    whole.working = "" if working is None else str(working)
    _count_journals(whole, paths, log)
    _find_strays(whole, paths, log)
    _check_closing(whole, paths, log)
    return whole


def _check_input(audit: Audit, run_json: dict[str, Any]) -> None:
    inputs = run_json["inputs"]
    if "data" not in run_json["config"]:  # no file holds it, and who made the records knows how to check them
        audit.input_rows = audit.rows
        return
    data = stored_data(run_json).model_copy(update={"limit": inputs["limit"]})
    try:
        scan = current_scan(data, audit.run)
        now = scan.fingerprint()
        changed = inputs_drift(inputs, now)
        other = None if changed else _other_key(audit.run, scan, data)
    except (BulkError, OSError) as error:
        what = str(error).removeprefix(f"{INPUTS}: ").rstrip(".")
        audit.problems.append(Finding(INPUTS, what, "put the input where it was; the results can be read without it"))
        return
    audit.input_rows = covered_rows(now)
    audit.problems += [Finding(difference.key, difference.text, _RESTORE) for difference in changed]
    if other is not None:
        key = "cannot be read" if other.now is None else f"has the key {shown(other.now)}"
        what = f"row {other.row} of the input {key}, and what is recorded of it is of {shown(other.finished)}"
        other_places = "start over with --overwrite: an input was adopted whose rows stood in other places"
        cure = "run the same command again with --retry-errors: it does failed rows again" if other.failed else other_places
        audit.problems.append(Finding(INPUTS, what, cure))
    if not changed and audit.input_rows != audit.rows:
        audit.note(INPUTS, f"the input has {audit.input_rows:,} rows now, the run covers {audit.rows:,}", "it does the new ones")


def _other_key(run: Path, scan: Scan, data: DataConfig) -> ChangedKey | None:
    """Returns a row whose records are of another key than the input gives it.

    None where rows have no keys of their own, or the input grows in this moment.
    """
    if data.key_column is None:
        return None
    columns = ["row", "key"]
    with suppress(DataError):
        return changed_key(
            lambda: finished_results(run, columns, sound=True),
            lambda: finished_errors(run, columns, sound=True),
            read_rows(scan, data, [range(scan.rows)]),
        )
    return None


def _check_notes(audit: Audit, paths: RunPaths) -> None:
    """Checks the small files beside parts and journals."""
    summary = _read_note(audit, paths.summary)
    _read_note(audit, paths.inputs)
    if digest := summary.get("stats_sha256"):
        if not paths.stats.exists():
            audit.note(paths.stats, "is missing", "it is written anew")
        elif sha256(paths.stats) != digest:
            audit.note(paths.stats, "is damaged: its sha256 is not the one in summary.json", "it is written anew")
    for path in (paths.commits, paths.sessions, paths.metrics, paths.workers, paths.policy_events):
        if damaged := damaged_lines(path):
            lines = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
            audit.note(path, f"the checksums of {len(damaged)} lines do not fit (lines {lines})", "they are set aside")


def _read_note(audit: Audit, path: Path) -> dict[str, Any]:
    try:
        return read_document(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        audit.note(path, str(error), "it is written anew")
        return {}


def _count_shard(audit: Audit, paths: RunPaths, commit: Commit, rows: range, samples: int | None, columns: list[pa.Schema]) -> None:
    """Counts the shard, or notes what is wrong with it. rows: those it should have. columns: the first shard's."""
    if commit.rows > len(rows):
        audit.open_shards.append(commit.shard)
        what = f"shard {commit.shard} is committed with {commit.rows} rows, the input gives it {len(rows)}"
        audit.problems.append(Finding(str(paths.commits), what, _RESTORE))
        return None
    try:
        count = count_shard(paths, commit, rows.start, samples)
    except DamageError as error:
        superseding = read_commits(paths).commits.get(commit.shard)
        if superseding not in (None, commit):  # the run is at work, and took the old part away
            return _count_shard(audit, paths, superseding, rows, samples, columns)
        audit.open_shards.append(commit.shard)
        audit.note(error.part, str(error), f"it does shard {commit.shard} again")
        return None
    if commit.rows < len(rows):
        audit.open_shards.append(commit.shard)
    columns += [] if count.columns is None or columns else [count.columns]
    if count.columns is not None and not columns[0].equals(count.columns):
        part = paths.results_part(commit.shard, commit.generation)
        cure = f"remove this file, and run the same command again: it does shard {commit.shard} again"
        audit.problems.append(Finding(str(part), "has other columns than the first part, or in another order", cure))
    audit.resolved += commit.rows
    audit.records += count.records
    audit.errors += count.errors
    audit.files += count.files
    audit.bytes += count.bytes
    return None


def _count_journals(audit: Audit, paths: RunPaths, log: CommitLog) -> None:
    """Counts what is finished and not committed. An empty journal beside its shard's commit is litter and does not count."""
    for each in uncommitted_journals(journal_files(paths), log):
        shard, kept = int(each.path.name), each.journal
        if kept is None and not each.damaged_bytes and shard in log.commits:
            continue
        if each.damaged_bytes or kept is None:
            what = f"{each.damaged_bytes:,} bytes behind its last whole frame are torn or damaged"
            audit.note(each.path, what, "it does their rows again")
        if shard not in audit.open_shards:
            audit.open_shards.append(shard)
        audit.journaled += sum(batch.num_rows for batch in kept.results + kept.errors) if kept is not None else 0


def _find_strays(audit: Audit, paths: RunPaths, log: CommitLog) -> None:
    """Finds Arrow files that no commit declares. A reader of the whole folder would read rows twice."""
    for folder in (paths.results, paths.errors):
        for file in sorted(folder.glob("*.arrow")):
            name = part_of(file.name)
            commit = log.commits.get(name[0]) if name else None
            if commit is not None and name == (commit.shard, commit.generation) and (folder == paths.results or commit.errors):
                continue
            if name:
                audit.note(file, "no commit declares it", "it adopts the file, or takes it away")
            elif not file.name.startswith("."):
                audit.problems.append(Finding(str(file), "is not the run's", "move it elsewhere: who reads the folder reads it too"))


def _check_closing(audit: Audit, paths: RunPaths, log: CommitLog) -> None:
    audit.closed = log.closing is not None
    counted = {"rows": audit.resolved, "records": audit.records, "errors": audit.errors.total()}
    if log.closing is not None and not (audit.problems or audit.open_shards) and counted != {key: log.closing[key] for key in counted}:
        declared = ", ".join(f"{log.closing[key]} {key}" for key in counted)
        what = f"its closing line says {declared}; there are {', '.join(f'{number} {key}' for key, number in counted.items())}"
        audit.problems.append(Finding(str(paths.commits), what, "this is a fault of mlx-bulk's: keep the folder, and report it"))
