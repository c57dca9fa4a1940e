"""How a sweep stands: each of its cells, which are runs, by its status; as text for a terminal, and as JSON. Changes nothing."""

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
    """The status of each cell of the sweep in ``folder``, in their order; None of one that no start has come to.

    Raises RunDirError where sweep.json, or a cell, cannot be read.
    """
    names = [str(cell["name"]) for cell in cells_of(folder)]
    return {name: run_status(folder / name) if (folder / name).is_dir() else None for name in names}


def sweep_status_as_text(folder: Path, found: dict[str, Status | None]) -> str:
    """A line on all of them, then one a cell: state, rows, errors; what came out is in the sweep's report and its table."""
    states = Counter("waiting" if each is None else each.state for each in found.values())
    said = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    lines = [["cell", "state", "rows", "errors"]]
    for name, each in found.items():
        shown = shorten(visible(name), _NAME_WIDTH)
        figures = ["waiting", "", ""] if each is None else [each.state, progress_of(each), f"{each.errors - each.dropped:,}"]
        lines.append([shown, *figures])
    report = folder / "report.html"
    last = [f"report    {report}"] if report.is_file() else []
    return "\n".join([f"sweep     {folder}: {count_text(len(found), 'cell')}: {said}", *last, "", *align_columns(lines, 2)])


def sweep_status_as_json(folder: Path, found: dict[str, Status | None]) -> str:
    """One JSON object: a cell's status is the object of a run's, and null where no start has come to it."""
    cells = [{"name": name, "status": None if each is None else status_values(each)} for name, each in found.items()]
    return json.dumps({"sweep": str(folder), "cells": cells}, indent=2, ensure_ascii=False)
