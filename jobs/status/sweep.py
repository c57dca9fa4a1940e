"""Reads the status of each cell of a sweep, and formats them as text for a terminal and as JSON. Changes nothing."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ...configs.errors import BulkError
from ...configs.visible import visible
from ...runner.runs.run_files import cells_of, stored_failures
from ...runner.runs.status import Status, run_status
from ..terminal.tables import align_columns, count_text, shorten
from .text import progress_of, start_command, status_values

_NAME_WIDTH = 60


@dataclass(slots=True, frozen=True)
class CellStatus:
    """A cell's status: of its run, None where there is none yet; and why its last start failed, None where it did not."""

    run: Status | None
    failure: str | None

    @property
    def state(self) -> str:
        """The state of the cell's run, or failed, or waiting."""
        if self.failure is not None and (self.run is None or self.run.state not in ("complete", "running", "starting")):
            return "failed"
        return "waiting" if self.run is None else self.run.state


def cell_statuses(folder: Path) -> dict[str, CellStatus]:
    """Returns the status of each cell of the sweep in ``folder``, in order.

    Raises RunDirError where sweep.json, or a cell, cannot be read.
    """
    names, failures = [str(cell["name"]) for cell in cells_of(folder)], stored_failures(folder)
    return {name: CellStatus(run_status(folder / name) if (folder / name).is_dir() else None, failures.get(name)) for name in names}


def sweep_status_exit_code(statuses: dict[str, CellStatus]) -> int:
    """Returns 5 where a cell has failed, else 0."""
    return BulkError.exit_code if any(status.state == "failed" for status in statuses.values()) else 0


def sweep_status_as_text(folder: Path, statuses: dict[str, CellStatus]) -> str:
    """Returns a line on all cells, then one a cell: state, rows, errors. Their results are in the sweep's report and its table."""
    states = Counter(status.state for status in statuses.values())
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    lines = [["cell", "state", "rows", "errors"]]
    for name, status in statuses.items():
        figures = ["", ""] if (run := status.run) is None else [progress_of(run), f"{run.errors - run.dropped:,}"]
        lines.append([shorten(visible(name), _NAME_WIDTH), status.state, *figures])
    failed = [f"{visible(name)}: {visible(status.failure or '')}" for name, status in statuses.items() if status.state == "failed"]
    report = folder / "report.html"
    report_line = [f"report    {report}"] if report.is_file() else []
    head = f"sweep     {folder}: {count_text(len(statuses), 'cell')}: {counts}"
    continue_line = [] if (command := _continuing(statuses)) is None else [f"continue  {command}"]
    return "\n".join([head, *report_line, *continue_line, "", *align_columns(lines, 2), *failed])


def _continuing(statuses: dict[str, CellStatus]) -> str | None:
    """Returns the command that continues the sweep. None where all cells are complete, or one is at work."""
    states = {status.state for status in statuses.values()}
    if states <= {"complete"} or states & {"running", "starting"}:
        return None
    known = (start_command(status.run) for status in statuses.values() if status.run is not None)
    return next((command for command in known if command is not None), "the command that started it")


def sweep_status_as_json(folder: Path, statuses: dict[str, CellStatus]) -> str:
    """Returns one JSON object; a cell's status is the object of its run, null where no start has reached it."""
    cells = [
        {
            "name": name,
            "state": status.state,
            "error": status.failure if status.state == "failed" else None,
            "status": None if status.run is None else status_values(status.run),
        }
        for name, status in statuses.items()
    ]
    return json.dumps({"sweep": str(folder), "cells": cells}, indent=2, ensure_ascii=False)
