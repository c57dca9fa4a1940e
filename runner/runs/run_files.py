"""Reads what a run directory says of itself in run.json and stats.arrow, and a sweep's folder in sweep.json.

Changes nothing and takes no lock.
"""

import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.errors import RunDirError
from ..core.shard_layout import covered_rows, rounds_of, total_rows
from ..files.checked_json import read_document
from ..store.commit_log import read_commits
from ..store.paths import RunPaths, part_of
from .summary import Summary

log = logging.getLogger("mlx_bulk")

SWEEP_FILE = "sweep.json"
TABLE_FILE = "sweep.arrow"
SCHEMA_VERSION = 2  # of run.json


def read_run(path: Path) -> dict[str, Any]:
    """Reads run.json of the run directory ``path``. Raises ValueError where its checksum does not fit, OSError where it cannot be read."""
    return read_document(RunPaths(path).run)


def unchecked_run(path: Path) -> dict[str, Any] | None:
    """Reads run.json of the run directory ``path`` without regard to its checksum; None where it is not one of ours."""
    try:
        run = json.loads(RunPaths(path).run.read_bytes())
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) and {"schema_version", "identity", "inputs"} <= run.keys() else None


def stored_run(path: Path) -> dict[str, Any]:
    """Reads run.json of the run directory ``path``: config, cwd, identity, inputs.

    Raises RunDirError where it is no run directory, or its run.json is damaged. For a sweep's folder the message names the runs in it.
    """
    try:
        run = read_run(path)
        if {"config", "cwd", "identity", "inputs"} <= run.keys():
            return run
        reason = "its run.json is not a run's"
        if (version := run.get("schema_version")) != SCHEMA_VERSION:
            reason = f"its run.json has schema version {version}, this mlx-bulk reads {SCHEMA_VERSION}"
    except (FileNotFoundError, NotADirectoryError):
        reason = "it holds no run.json" if path.is_dir() else "it is a file" if path.exists() else "there is no such folder"
    except ValueError as error:
        reason = f"its run.json cannot be read ({error}); where it is one, its own mlx-bulk run command rebuilds the file"
    except OSError as error:
        reason = f"its run.json cannot be read ({error})"
    cells = sorted(file.parent.name for file in path.glob("*/run.json")) if path.is_dir() else []
    hint = f"; runs in it are {', '.join(cells[:3])}{', …' if len(cells) > 3 else ''}" if cells else ""
    raise RunDirError(f"{path}: is not a run directory: {reason}; expected the output folder of mlx-bulk run{hint}")


def current_run(path: Path) -> dict[str, Any]:
    """Reads run.json as ``stored_run`` does. Raises RunDirError also where another version of the format wrote it."""
    stored = stored_run(path)
    if stored["schema_version"] != SCHEMA_VERSION:
        raise RunDirError(
            f"{path}: its run.json has schema version {stored['schema_version']}, this mlx-bulk reads {SCHEMA_VERSION}. "
            "Use the version that started the run (see sessions.jsonl)."
        )
    return stored


def rows_wanted(path: Path, limit: int | None, rounds: int) -> int | None:
    """Returns the limit with which a start of ``limit`` rows continues the run directory ``path``.

    A run that has done all its rows has done any fewer: its own rows are then the limit. Otherwise ``limit`` is. ``rounds``: of the start.
    """
    if limit is None:
        return None
    try:
        stored = current_run(path)
    except RunDirError:
        return limit
    rows = covered_rows(stored["inputs"])
    if limit >= rows or rounds > rounds_of(stored) or not read_commits(RunPaths(path)).is_complete(total_rows(stored)):
        return limit
    log.info("%s: the run has done %d rows; with data.limit %d it is complete", path, rows, limit)
    return rows


def notes_on(path: Path) -> list[str]:
    """Returns notes for readers of the run directory ``path`` that its records do not show."""
    if not RunPaths(path).doomed.exists():
        return []
    return [f"{path} holds an older run, which --overwrite is to remove; the next start does that"]


def stored_statistics(path: Path) -> pa.Table | None:
    """Reads stats.arrow of the run directory ``path``; None where it is missing, or where summary.json has another checksum of it.

    Its bytes are checked before they are parsed.
    """
    paths = RunPaths(path)
    try:
        content, digest = paths.stats.read_bytes(), read_document(paths.summary).get("stats_sha256")
    except (OSError, ValueError):
        return None
    return pa.ipc.open_file(pa.py_buffer(content)).read_all() if sha256(content).hexdigest() == digest else None


def needs_report(summary: Summary) -> bool:
    """Returns whether a run that ended so needs a new report.html: it is complete, and its page does not show all committed records.

    A process that was killed before it drew leaves an older page.
    """
    if not summary.complete or summary.rows == 0:
        return False
    paths = RunPaths(summary.output)
    return summary.worked or not paths.report.exists() or paths.report.stat().st_mtime_ns < paths.commits.stat().st_mtime_ns


def is_sweep(folder: Path) -> bool:
    """Returns True when ``folder`` is a sweep's."""
    return (folder / SWEEP_FILE).is_file() and not RunPaths(folder).run.exists()


def is_evaluation(folder: Path) -> bool:
    """Returns True when ``folder`` is the run directory of an evaluation."""
    run = unchecked_run(folder)
    return run is not None and run["config"]["job"] == "eval"


def cells_of(folder: Path) -> list[dict[str, Any]]:
    """Reads name and overrides of each cell of the sweep in ``folder``, in order. Raises RunDirError where sweep.json is damaged."""
    try:
        return read_document(folder / SWEEP_FILE)["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise RunDirError(f"{folder}: {SWEEP_FILE} cannot be read ({error}). Run the sweep's command again: it writes it anew.") from error


def stored_failures(folder: Path) -> dict[str, str]:
    """Returns why cells of the sweep in ``folder`` failed at its last start, by their names; nothing without a table that can be read."""
    return {row["cell"]: row["error"] or "" for row in _stored_cells(folder) if row["state"] == "failed"}


def has_complete_cells(folder: Path) -> bool:
    """Returns whether the sweep's table in ``folder`` has the figures of some cell; False without a table that can be read."""
    return any(row["state"] == "complete" for row in _stored_cells(folder))


def _stored_cells(folder: Path) -> list[dict[str, Any]]:
    """Returns cell, state and error of each row of a sweep's table; nothing where it cannot be read."""
    try:
        with pa.OSFile(str(folder / TABLE_FILE)) as file:
            table = pa.ipc.open_file(file).read_all().select(["cell", "state", "error"])
        table.validate(full=True)
    except (OSError, ValueError, KeyError):  # any start of the sweep writes it anew
        return []
    return table.to_pylist()


def with_nonce_of(stored: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Returns ``run`` with the nonce of the run that is there, or without one where that has none."""
    others = {key: value for key, value in run.items() if key != "nonce"}
    return {**others, "nonce": stored["nonce"]} if "nonce" in stored else others


def holds_rows(paths: RunPaths) -> bool:
    """Returns True where a run has a part or a journal."""
    folders = (folder for folder in (paths.results, paths.errors) if folder.is_dir())
    parts = (file for folder in folders for file in folder.iterdir() if part_of(file.name))
    return any(parts) or (paths.journal.is_dir() and any(paths.journal.iterdir()))


def is_over_no_rows(paths: RunPaths, stored: dict[str, Any]) -> bool:
    """Returns True where the run that is there, by its run.json, had an input without rows, and has none."""
    return not (covered_rows(stored["inputs"]) or holds_rows(paths) or read_commits(paths).commits)
