"""Reads the status of each cell of a sweep, and formats them as text for a terminal and as JSON. Changes nothing."""

import json
from collections import Counter
from pathlib import Path

from ...configs.visible import visible
from ...runner.runs.run_files import cells_of
from ...runner.runs.status import Status, run_status
from ..terminal.tables import align_columns, count_text, shorten
from .text import progress_of, status_values

_NAME_WIDTH = 60


def cell_statuses(folder: Path) -> dict[str, Status | None]:
    """Returns the status of each cell of the sweep in ``folder``, in order; None for a cell that no start has reached.

    Raises RunDirError where sweep.json, or a cell, cannot be read.
    """
    names = [str(cell["name"]) for cell in cells_of(folder)]
    return {name: run_status(folder / name) if (folder / name).is_dir() else None for name in names}


def sweep_status_as_text(folder: Path, statuses: dict[str, Status | None]) -> str:
    """Returns a line on all cells, then one a cell: state, rows, errors. Their results are in the sweep's report and its table."""
    states = Counter("waiting" if status is None else status.state for status in statuses.values())
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    lines = [["cell", "state", "rows", "errors"]]
    for name, status in statuses.items():
        figures = ["waiting", "", ""] if status is None else [status.state, progress_of(status), f"{status.errors - status.dropped:,}"]
        lines.append([shorten(visible(name), _NAME_WIDTH), *figures])
    report = folder / "report.html"
    report_line = [f"report    {report}"] if report.is_file() else []
    head = f"sweep     {folder}: {count_text(len(statuses), 'cell')}: {counts}"
    return "\n".join([head, *report_line, "", *align_columns(lines, 2)])


def sweep_status_as_json(folder: Path, statuses: dict[str, Status | None]) -> str:
    """Returns one JSON object; a cell's status is the object of its run, null where no start has reached it."""
    cells = [{"name": name, "status": None if status is None else status_values(status)} for name, status in statuses.items()]
    return json.dumps({"sweep": str(folder), "cells": cells}, indent=2, ensure_ascii=False)
