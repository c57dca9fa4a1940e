"""What a run directory says of itself in run.json and stats.arrow, and a sweep's folder in sweep.json. Changes nothing, takes no lock."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.errors import RunDirError
from ..files.checked_json import read_document
from ..store.paths import RunPaths

SWEEP_FILE = "sweep.json"


def stored_run(path: Path) -> dict[str, Any]:
    """What run.json in the run directory ``path`` says: config, cwd, identity, inputs.

    Raises RunDirError where it is no run directory, or its run.json is damaged; for a sweep's folder it names the runs in it.
    """
    try:
        run = read_document(RunPaths(path).run)
        if {"config", "cwd", "identity", "inputs"} <= run.keys():
            return run
        reason = "its run.json is not a run's"
    except (FileNotFoundError, NotADirectoryError):
        reason = "it holds no run.json" if path.is_dir() else "it is a file" if path.exists() else "there is no such folder"
    except (OSError, ValueError) as error:
        reason = f"its run.json cannot be read ({error})"
    cells = sorted(file.parent.name for file in path.glob("*/run.json")) if path.is_dir() else []
    hint = f"; runs in it are {', '.join(cells[:3])}{', …' if len(cells) > 3 else ''}" if cells else ""
    raise RunDirError(f"{path}: is not a run directory: {reason}; expected the output folder of mlx-bulk run{hint}")


def notes_on(path: Path) -> list[str]:
    """What whoever reads the run directory ``path`` must know of it and does not see in its records."""
    if not RunPaths(path).doomed.exists():
        return []
    return [f"{path} holds an older run, which --overwrite is to remove; the next start does that"]


def stored_statistics(path: Path) -> pa.Table | None:
    """The table in stats.arrow of the run directory ``path``; None where it is missing, or not the one that summary.json vouches for.

    Its bytes are checked before they are parsed.
    """
    paths = RunPaths(path)
    try:
        content, digest = paths.stats.read_bytes(), read_document(paths.summary).get("stats_sha256")
    except (OSError, ValueError):
        return None
    return pa.ipc.open_file(pa.py_buffer(content)).read_all() if sha256(content).hexdigest() == digest else None


def is_sweep(folder: Path) -> bool:
    """Whether ``folder`` is a sweep's."""
    return (folder / SWEEP_FILE).is_file() and not RunPaths(folder).run.exists()


def cells_of(folder: Path) -> list[dict[str, Any]]:
    """Name and overrides of each cell of the sweep in ``folder``, in order. Raises RunDirError where sweep.json is damaged."""
    try:
        return read_document(folder / SWEEP_FILE)["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise RunDirError(f"{folder}: {SWEEP_FILE} cannot be read ({error}). Run the sweep's command again: it writes it anew.") from error
