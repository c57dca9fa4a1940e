"""``job: sweep``: each cell is an ordinary run in a directory of its own, one after another in one process.

Cells are ordered so that models are loaded once. A cell that fails is told and left; the next start tries it again and
continues the others. Knows nothing of rows or statistics: what the cells came to is ``sweep_table.py``'s.
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
from ...runner.models.model_pool import ModelPool
from ...runner.pipeline import session
from ...runner.pipeline.job import Kind
from ...runner.pipeline.progress_display import Show
from ...runner.pipeline.run_spec import why_refused
from ...runner.runs.run_dir import RunDir, Start
from ...runner.runs.run_files import SWEEP_FILE
from ...runner.runs.summary import Summary
from ...runner.store.paths import RunPaths
from ..terminal.closing_line import QUARANTINED, continue_command, last_line
from ..terminal.tables import count_text

log = logging.getLogger("mlx_bulk")

SCHEMA_VERSION = 2

_MARK = "mlx-bulk sweep"
_MIXED = 5  # exit code: cells failed in several ways


@dataclass(frozen=True, slots=True)
class Ended:
    """How far a cell came: ``summary`` where its run ended by itself, ``code`` and ``message`` where it failed.

    ``waiting`` cells were not begun.
    """

    cell: Cell
    state: Literal["complete", "stopped", "failed", "waiting"]
    summary: Summary | None = None
    code: int = 0
    message: str = ""

    @property
    def exit_code(self) -> int | None:
        """What a run of the cell alone would return; None for one that is not at its end."""
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
    outside: HostProcess,
    show: Show,
    tell: Callable[[Sequence[Ended]], None],
    models: ModelPool | None = None,
) -> list[Ended]:
    """Runs each of the cells, or what is left of it, and says in the cells' own order how they ended.

    ``outside`` is asked between steps and between cells whether to end early; ``start`` is each cell's, and ``show``
    how its progress is told; ``models`` keeps what is loaded; ``tell`` is told after each cell how far all of them are.
    Raises ConfigError for templates that cannot be parsed, before anything starts, and RunDirError where ``folder`` is not a
    sweep's or another process works there.
    """
    _check_templates(cells, kinds)
    for line in missing_paths(cells):
        log.warning("%s", line)
    with held(folder, _MARK, _is_sweep_folder):
        _write_list(folder, cells)
        if start.overwrite:
            _doom(cells, kinds, start.adopt, outside)
        ended = {cell.name: Ended(cell, "waiting") for cell in cells}
        models = models or ModelPool()
        for number, cell in enumerate(in_loading_order(cells), start=1):
            log.info("cell %d of %d: %s", number, len(cells), cell.label)
            ended[cell.name] = _ended(
                cell,
                lambda cell=cell: session.run_job(cell.config, kinds[cell.config.job], start, outside, show, models),
                continue_command(start.overwrite),
            )
            tell(list(ended.values()))
            if outside.stopped():
                break
    return list(ended.values())


def in_loading_order(cells: Sequence[Cell]) -> list[Cell]:
    """The cells so that few models are loaded: next comes always a cell that needs the fewest new ones, and keeps the most.

    Of those alike the first is taken, so cells of the same models stay in order.
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
    """A line for each local folder or file that cells name and that does not exist; what may be on the hub is not looked for."""
    needed: dict[tuple[str, str], int] = {}
    for cell in cells:
        for named in dict.fromkeys(_local_paths(cell.config)):
            needed[named] = needed.get(named, 0) + 1
    return [
        f"{key}: {path} does not exist; {count:,} of {len(cells):,} cells will fail"
        for (key, path), count in needed.items()
        if not Path(path).exists()
    ]


def _local_paths(config: JobConfig) -> Iterator[tuple[str, str]]:
    """Key and path of each model, adapter and input that is certain to be local."""
    for key, model in (("model", config.model), ("score.reference", config.reference)):
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


def sweep_exit_code(ended: Sequence[Ended]) -> int | None:
    """What the process returns: 0, 3 where rows are quarantined, the failed cells' code, or 5 where they differ.

    None for a sweep that was stopped: with what it ends is not for its cells to say.
    """
    if any(each.state in ("stopped", "waiting") for each in ended):
        return None
    codes = [each.code for each in ended if each.state == "failed"]
    if codes:
        return codes[0] if len(set(codes)) == 1 else _MIXED
    return QUARANTINED if any(each.summary and each.summary.errors for each in ended) else 0


def closing_line(ended: Sequence[Ended], folder: Path, command: str) -> str:
    """The last line of a sweep: how many cells are in which state; ``command`` continues it, if any is left."""
    count = {state: sum(each.state == state for each in ended) for state in ("complete", "failed", "stopped", "waiting")}
    said = [f"{count['complete']:,} of {len(ended):,} cells complete"]
    if errors := sum(each.summary.errors for each in ended if each.summary):
        said.append(f"{count_text(errors, 'row')} quarantined")
    if count["failed"]:
        said.append(f"{count['failed']:,} failed")
    if unfinished := count["stopped"] + count["waiting"]:
        said.append(f"{unfinished:,} left")
    again = "" if count["complete"] == len(ended) else f"; {command} continues"
    return f"sweep: {', '.join(said)}{again} -> {folder}"


def _ended(cell: Cell, work: Callable[[], Summary], command: str) -> Ended:
    """Does the work of one cell, which ``command`` continues; what stops it stops no other."""
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
        return Ended(cell, "complete" if summary.complete else "stopped", summary)
    log.error("cell %s failed: %s", cell.name, message)
    return Ended(cell, "failed", None, code, message)


def _doom(cells: Sequence[Cell], kinds: Mapping[str, Kind], adopt: tuple[str, ...], outside: HostProcess) -> None:
    """Notes in each old run that it is to go, before the first goes: broken off, the sweep must not take one for the new one's.

    The old run of a cell that cannot start is left as it is: the next start may be with other settings. Raises RunDirError, and
    then no run is marked, where another process works in one.
    """
    left = [cell for cell in cells if RunPaths(_path(cell)).run.exists() and not outside.supervisor.orders(_path(cell).absolute()).begun]
    for cell in left:
        RunDir.open(_path(cell)).close()
    reasons = why_refused([cell.config for cell in left], kinds, adopt)
    for cell, why in zip(left, reasons, strict=True):
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
    wanted = [config.model] if config.reference is None else [config.model, config.reference]
    return {model.model_dump_json() for model in wanted}


def _is_sweep_folder(folder: Path) -> bool:
    return (folder / SWEEP_FILE).is_file()


def _write_list(folder: Path, cells: Sequence[Cell]) -> None:
    listed = [{"name": cell.name, "overrides": cell.overrides} for cell in cells]
    with room_on(folder):
        write_document(folder / SWEEP_FILE, {"schema_version": SCHEMA_VERSION, "cells": listed})
