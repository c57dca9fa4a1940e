"""What a run would find in its output folder: nothing, work of its own to continue, or something that makes it refuse.

Only looks: takes no lock, makes no folder, and changes no file there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...configs.schema import JobConfig
from ..core.errors import RunDirError
from ..core.shard_layout import rounds_of
from ..files.folder_lock import holder, refuse_strangers
from ..pipeline.run_spec import RunSpec
from ..runs.drift import identity_drift, inputs_drift, rounds_drift
from ..runs.run_dir import MARK
from ..runs.run_files import stored_run
from ..runs.status import run_status
from ..store.paths import OWN_FOLDERS, RunPaths, part_of

State = Literal["new", "continues", "complete", "refused"]


@dataclass(slots=True, frozen=True)
class OutputState:
    """What stands there for the run. rows: those that are done; differences: why it is refused, a line each."""

    state: State
    rows: int = 0
    differences: tuple[str, ...] = ()


def found_in_output(config: JobConfig, known: RunSpec) -> OutputState:
    """What a run of ``config`` would find. The weights are hashed where the folder holds a run to compare with."""
    paths = RunPaths(Path(config.output.path))
    if paths.root.exists() and not paths.root.is_dir():
        return OutputState("refused", 0, (f"{paths.root}: is a file; choose another --output",))
    try:
        refuse_strangers(paths.root, MARK, known=paths.run.is_file(), begins_with=OWN_FOLDERS)
        if not _has_work(paths):
            return OutputState("new")
        stored = stored_run(paths.root)
    except RunDirError as error:
        return OutputState("refused", 0, (str(error),))
    now: dict[str, Any] = {"config": config.model_dump(mode="json"), "inputs": known.found.fingerprint()}
    drift = identity_drift(stored["identity"], known.identity(config)) + inputs_drift(stored["inputs"], now["inputs"])
    drift += rounds_drift(stored, now)
    if drift:
        causes = [difference for difference in drift if not difference.key.startswith("column ")]
        return OutputState("refused", 0, tuple(map(str, causes or drift)))
    if (working := holder(paths.root)) is not None:
        return OutputState("refused", 0, (f"{working} is working there",))
    done = run_status(paths.root)
    whole = done.state == "complete" and done.rows >= known.found.rows * rounds_of(now)
    return OutputState("complete" if whole else "continues", done.rows)


def _has_work(paths: RunPaths) -> bool:
    """Whether anything is finished there, as ``RunDir.bind`` looks for it: without it a start binds nobody."""
    folders = (folder for folder in (paths.results, paths.errors) if folder.is_dir())
    parts = (file for folder in folders for file in folder.iterdir() if part_of(file.name))
    if paths.doomed.exists():  # its removal was cut short, and goes on with the next start
        return False
    return paths.commits.exists() or (paths.journal.is_dir() and any(paths.journal.iterdir())) or any(parts)
