"""Looks into a run's output folder: it is new, holds work to continue, or holds something that makes the run refuse.

It only reads: it takes no lock, makes no folder, and changes no file there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...configs.schema import JobConfig
from ..core.errors import RunDirError
from ..core.shard_layout import rounds_of
from ..files.folder_lock import holder, refuse_strangers
from ..images.named_files import files_fingerprint
from ..pipeline.run_spec import RunSpec
from ..runs.drift import identity_drift, inputs_drift, rounds_drift
from ..runs.run_dir import MARK
from ..runs.run_files import holds_rows, is_over_no_rows, stored_run
from ..runs.status import run_status
from ..store.paths import OWN_FOLDERS, RunPaths

State = Literal["new", "continues", "complete", "refused"]


@dataclass(slots=True, frozen=True)
class OutputState:
    """The folder's state for a run. rows: rows that are done; differences: why the run would be refused, one line each."""

    state: State
    rows: int = 0
    differences: tuple[str, ...] = ()


def output_state(config: JobConfig, spec: RunSpec) -> OutputState:
    """Returns the state that a run of ``config`` would meet. Hashes the weights if the folder holds a run to compare with."""
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
    inputs = spec.scan.fingerprint()
    if spec.images is not None and (files := files_fingerprint(spec.scan, config, stored["inputs"].get("pictures"))) is not None:
        inputs = inputs | {"pictures": files}
    now: dict[str, Any] = {"config": config.model_dump(mode="json"), "inputs": inputs}
    drift = identity_drift(stored["identity"], spec.identity(config)) + inputs_drift(stored["inputs"], now["inputs"])
    drift += rounds_drift(stored, now)
    if drift and is_over_no_rows(paths, stored):
        return OutputState("new")
    if drift:
        causes = [difference for difference in drift if not difference.key.startswith("column ")]
        return OutputState("refused", 0, tuple(map(str, causes or drift)))
    if (working := holder(paths.root)) is not None:
        return OutputState("refused", 0, (f"{working} is working there",))
    done = run_status(paths.root)
    whole = done.state == "complete" and done.rows >= spec.scan.rows * rounds_of(now)
    return OutputState("complete" if whole else "continues", done.rows)


def _has_work(paths: RunPaths) -> bool:
    """Returns True when the folder holds finished work. Without it a start is free to change everything (see ``RunDir.bind``)."""
    if paths.doomed.exists():  # its removal was interrupted, and the next start completes it
        return False
    return paths.commits.exists() or holds_rows(paths)
