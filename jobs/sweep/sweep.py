"""Runs the cells of a ``job: sweep`` one after another in one process. Each cell is an ordinary run in its own directory.

Cells are ordered so that few models are loaded. A cell that fails is reported and left; the next start tries it again and
continues the others. Knows nothing of rows or statistics; results_table.py collects the figures.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...configs.cells import Cell
from ...configs.errors import BulkError, ConfigError
from ...configs.schema import JobConfig
from ...runner.core.host_process import HostProcess
from ...runner.files.checked_json import write_document
from ...runner.files.disk_space import room_on
from ...runner.files.folder_lock import held
from ...runner.pipeline import session
from ...runner.pipeline.job import Kind
from ...runner.pipeline.model_work import SessionWork
from ...runner.pipeline.progress_display import Show
from ...runner.pipeline.run_spec import refusal_reasons
from ...runner.runs.run_dir import RunDir, Start
from ...runner.runs.run_files import SWEEP_FILE
from ...runner.runs.summary import Summary
from ...runner.store.paths import RunPaths
from ..terminal.closing_line import QUARANTINED, continue_command, last_line
from ..terminal.console import warnings_said_once
from ..terminal.tables import count_text

log = logging.getLogger("mlx_bulk")

SCHEMA_VERSION = 2

_MARK = "mlx-bulk sweep"
_MIXED = 5  # exit code: cells failed in several ways


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The state of a cell after the sweep.

    ``summary`` is there where its run ended by itself, ``code`` and ``message`` where it failed. ``waiting`` cells have not begun.
    """

    cell: Cell
    state: Literal["complete", "stopped", "failed", "waiting"]
    summary: Summary | None = None
    code: int = 0
    message: str = ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a run of this cell alone; None for a cell that has not ended."""
        if self.state == "failed":
            return self.code
        if self.state != "complete":
            return None
        return QUARANTINED if self.summary and self.summary.errors else 0


def run_sweep(
    cells: Sequence[Cell],
    kinds: Mapping[str, Kind],
    folder: Path,
    start: Start,
    process: HostProcess,
    show: Show,
    tell: Callable[[Sequence[CellOutcome]], None],
    work: SessionWork,
) -> list[CellOutcome]:
    """Runs each cell, or the rest of it, and returns the outcomes in the order of ``cells``.

    ``start`` and ``show`` (how to display progress) apply to every cell. ``work`` does their rows. ``tell`` is called
    after each cell with the outcomes so far. ``process`` says between steps and between cells whether to end early.
    Raises ConfigError for templates that cannot be parsed, before anything starts, and RunDirError where ``folder`` is not a
    sweep's or another process works there.
    """
    _check_templates(cells, kinds)
    for line in missing_paths(cells):
        log.warning("%s", line)
    with held(folder, _MARK, _is_sweep_folder), warnings_said_once():
        _write_list(folder, cells)
        if start.overwrite:
            _mark_old_runs(cells, kinds, start.adopt, process)
        outcomes = {cell.name: CellOutcome(cell, "waiting") for cell in cells}
        for number, cell in enumerate(in_loading_order(cells), start=1):
            log.info("cell %d of %d: %s", number, len(cells), cell.label)
            outcomes[cell.name] = _run_cell(
                cell,
                lambda cell=cell: session.run_job(cell.config, kinds[cell.config.job], start, process, show, work),
                continue_command(start.overwrite),
            )
            tell(list(outcomes.values()))
            if process.stopped():
                break
    return list(outcomes.values())


def in_loading_order(cells: Sequence[Cell]) -> list[Cell]:
    """Orders cells so that few models are loaded.

    Next comes a cell that needs the fewest new models, and of those one that keeps the most. Among equals the first comes first,
    so cells of the same models stay in order.
    """
    left, ordered = list(cells), list[Cell]()
    held: set[str] = set()
    while left:
        needs = [_models(cell.config) for cell in left]
        best = min(range(len(left)), key=lambda i: (len(needs[i] - held), -len(needs[i] & held)))
        held = needs[best]
        ordered.append(left.pop(best))
    return ordered


def missing_paths(cells: Sequence[Cell]) -> list[str]:
    """Returns a line for each missing local folder or file that cells name. Names that may be on the hub are not looked up."""
    needed: dict[tuple[str, str], int] = {}
    for cell in cells:
        for key_and_path in dict.fromkeys(_local_paths(cell.config)):
            needed[key_and_path] = needed.get(key_and_path, 0) + 1
    return [
        f"{key}: {path} does not exist; {count:,} of {count_text(len(cells), 'cell')} will fail"
        for (key, path), count in needed.items()
        if not Path(path).exists()
    ]


def _local_paths(config: JobConfig) -> Iterator[tuple[str, str]]:
    """Yields the key and path of each model, adapter and input that is certainly local."""
    for key, model in (("model", config.model), ("score.reference", config.reference), *config.reward_models.items()):
        for name, path in (("path", model.path), ("adapter", model.adapter)) if model is not None else ():
            if (
                path is not None
                and path != "demo"
                and (path.startswith((".", "/", "~")) or (Path(path).parent.name and Path(path).parent.is_dir()))
            ):
                yield f"{key}.{name}", path
    for path in [config.data.path] if isinstance(config.data.path, str) else config.data.path:
        if not path.startswith("hf:") and not any(sign in path for sign in "*?["):
            yield "data.path", path


def nothing_done(outcomes: Sequence[CellOutcome]) -> bool:
    """Returns whether each cell that was tried failed, as all do whose base has changed."""
    return all(outcome.state in ("failed", "waiting") for outcome in outcomes)


def sweep_exit_code(outcomes: Sequence[CellOutcome]) -> int | None:
    """Returns the exit code of the sweep: 0, 3 where rows are quarantined, the failed cells' code, or 5 where their codes differ.

    None for a sweep that was stopped: its cells do not decide the exit code then.
    """
    if any(outcome.state in ("stopped", "waiting") for outcome in outcomes):
        return None
    codes = [outcome.code for outcome in outcomes if outcome.state == "failed"]
    if codes:
        return codes[0] if len(set(codes)) == 1 else _MIXED
    return QUARANTINED if any(outcome.summary and outcome.summary.errors for outcome in outcomes) else 0


def closing_line(outcomes: Sequence[CellOutcome], folder: Path, command: str) -> str:
    """Returns the last line of a sweep: how many cells are in which state. ``command`` continues the rest."""
    count = {state: sum(outcome.state == state for outcome in outcomes) for state in ("complete", "failed", "stopped", "waiting")}
    parts = [f"{count['complete']:,} of {count_text(len(outcomes), 'cell')} complete"]
    if errors := sum(outcome.summary.errors for outcome in outcomes if outcome.summary):
        parts.append(f"{count_text(errors, 'row')} quarantined")
    if count["failed"]:
        parts.append(f"{count['failed']:,} failed")
    if unfinished := count["stopped"] + count["waiting"]:
        parts.append(f"{unfinished:,} left")
    again = f"; mend what failed, then {command} goes on" if count["failed"] else f"; {command} continues" if unfinished else ""
    return f"sweep: {', '.join(parts)}{again} -> {folder}"


def _run_cell(cell: Cell, work: Callable[[], Summary], command: str) -> CellOutcome:
    """Does the work of one cell. An error ends this cell alone. ``command`` continues it."""
    try:
        summary = work()
    except BulkError as error:
        log.debug("the error below came from here:", exc_info=error)
        code, message = error.exit_code, str(error)
    except Exception as error:  # a fault of ours, or of a library
        log.debug("the error below came from here:", exc_info=error)
        code, message = BulkError.exit_code, f"{type(error).__name__}: {error}"
    else:
        log.info("%s", last_line(summary, command))
        return CellOutcome(cell, "complete" if summary.complete else "stopped", summary)
    message = message.removeprefix(f"{cell.config.output.path}: ")
    log.error("cell %s failed: %s", cell.name, message)
    return CellOutcome(cell, "failed", None, code, message)


def _mark_old_runs(cells: Sequence[Cell], kinds: Mapping[str, Kind], adopt: tuple[str, ...], process: HostProcess) -> None:
    """Marks all old runs for removal before the first is removed. An interrupted sweep must not take an old run for a new one.

    The old run of a cell that cannot start stays, since the next start may have other settings. Raises RunDirError where
    another process works in one of them; then no run is marked.
    """
    old = [cell for cell in cells if RunPaths(_path(cell)).run.exists() and not process.supervisor.orders(_path(cell).absolute()).started]
    for cell in old:
        RunDir.open(_path(cell)).close()
    reasons = refusal_reasons([cell.config for cell in old], kinds, adopt)
    for cell, why in zip(old, reasons, strict=True):
        if why is not None:
            log.warning("cell %s cannot start, so its old run stays: %s", cell.name, why)
            continue
        with RunDir.open(_path(cell)) as run_dir, room_on(run_dir.root):
            run_dir.doom()


def _path(cell: Cell) -> Path:
    return Path(cell.config.output.path)


def _check_templates(cells: Sequence[Cell], kinds: Mapping[str, Kind]) -> None:
    for cell in cells:
        try:
            kinds[cell.config.job].check(cell.config, [])
        except ConfigError as error:
            raise ConfigError(f"the cell {cell.label}: {error}") from error


def _models(config: JobConfig) -> set[str]:
    models = (config.model, config.reference, *config.reward_models.values())
    return {model.model_dump_json() for model in models if model is not None}


def _is_sweep_folder(folder: Path) -> bool:
    return (folder / SWEEP_FILE).is_file()


def _write_list(folder: Path, cells: Sequence[Cell]) -> None:
    listed = [{"name": cell.name, "overrides": cell.overrides} for cell in cells]
    with room_on(folder):
        write_document(folder / SWEEP_FILE, {"schema_version": SCHEMA_VERSION, "cells": listed})
