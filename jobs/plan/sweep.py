"""Plans a sweep: the plan of each cell, a line a cell, and the sums of all.

Cells are planned in the order in which a sweep runs them, so that a trial loads each model once. A cell that cannot be planned is
reported, and the others go on, as with a cell that fails in a sweep.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...configs.cells import Cell
from ...configs.errors import BulkError
from ...runner.core.units import size_as_text
from ...runner.estimate.plan import Plan, plan_run
from ...runner.models.model_pool import ModelPool
from ...runner.pipeline.job import Kind
from ...runner.runs.throughput import duration
from ..sweep.results_table import setting_columns
from ..sweep.sweep import in_loading_order, missing_paths
from ..terminal.closing_line import QUARANTINED
from ..terminal.console import warnings_said_once
from ..terminal.tables import align_columns, count_text
from .values import plan_values

log = logging.getLogger("mlx_bulk")

_MIXED = 5  # exit code: cells failed in several ways


@dataclass(slots=True, frozen=True)
class CellPlan:
    """One cell and its plan. A cell without one has the exit code and the message of a run of it."""

    cell: Cell
    plan: Plan | None
    code: int = 0
    message: str = ""


def plan_sweep(cells: Sequence[Cell], kinds: Mapping[str, Kind], calibrate: bool) -> list[CellPlan]:
    """Plans all cells; returns the plans in the cells' own order."""
    for line in missing_paths(cells):
        log.warning("%s", line)
    models = ModelPool() if calibrate else None
    plans: dict[str, CellPlan] = {}
    with warnings_said_once():
        for number, cell in enumerate(in_loading_order(cells), start=1):
            log.info("cell %d of %d: %s", number, len(cells), cell.label)
            plans[cell.name] = _plan_cell(cell, lambda cell=cell: plan_run(cell.config, kinds[cell.config.job], models))
    return [plans[cell.name] for cell in cells]


def _plan_cell(cell: Cell, plan: Callable[[], Plan]) -> CellPlan:
    try:
        return CellPlan(cell, plan())
    except BulkError as error:
        log.debug("the error below came from here:", exc_info=error)
        return CellPlan(cell, None, error.exit_code, str(error))


def plan_exit_code(cell_plans: Sequence[CellPlan]) -> int:
    """Returns the exit code of the cells without a plan, 5 if theirs differ. Else it returns 3 if a cell has only bad rows, or 0."""
    codes = {each.code for each in cell_plans if each.plan is None}
    if not codes:
        return max((bad_rows_exit_code(each.plan) for each in cell_plans if each.plan is not None), default=0)
    return codes.pop() if len(codes) == 1 else _MIXED


def bad_rows_exit_code(plan: Plan) -> int:
    """Returns 3 where no row of the plan can be done, else 0."""
    return QUARANTINED if plan.survey.rows_read and not plan.survey.lengths else 0


def sweep_plan_as_text(cell_plans: Sequence[CellPlan]) -> str:
    """Returns a table, a line a cell; below it the errors, and the disk and time that all cells take together."""
    settings = setting_columns([each.cell.settings for each in cell_plans])
    figures = [_HEAD, *map(_figures, cell_plans)]
    lines = align_columns([(*cell, *rest) for cell, rest in zip(zip(*settings, strict=True), figures, strict=True)], len(settings))
    for each in cell_plans:
        if each.plan is None:
            lines.append(f"{each.cell.label}: {each.message}")
        elif each.plan.output.state == "refused":
            lines.append(f"{each.cell.label}: would be refused: {'; '.join(each.plan.output.differences)}")
    plans = [each.plan for each in cell_plans if each.plan is not None]
    if plans:
        seconds = [plan.seconds_left for plan in plans]
        time = f", {duration(sum(s or 0.0 for s in seconds))}" if None not in seconds else ""
        free = size_as_text(min(plan.free_bytes for plan in plans))
        lines.append(
            f"{count_text(len(plans), 'cell')}: {size_as_text(sum(plan.disk_bytes for plan in plans))} of results ({free} are free){time}"
        )
    return "\n".join(lines)


def sweep_plan_as_json(cell_plans: Sequence[CellPlan]) -> str:
    """Returns one JSON object: ``cells`` with the name, the settings, and the plan or the error of each."""
    cells = [
        {
            "cell": each.cell.name,
            "settings": each.cell.overrides,
            "plan": None if each.plan is None else plan_values(each.plan),
            "error": each.message or None,
        }
        for each in cell_plans
    ]
    return json.dumps({"job": "sweep", "cells": cells}, indent=2, ensure_ascii=False)


_HEAD = ("rows", "left", "bad", "tokens", "memory", "disk", "time left")


def _figures(each: CellPlan) -> tuple[str, ...]:
    plan = each.plan
    if plan is None:
        return tuple("–" for _ in _HEAD)
    bad = round(plan.survey.factor * plan.survey.bad_rows)
    tokens = plan.prompt_tokens + plan.work.generated if plan.survey.generates else plan.work.prefilled
    memory = size_as_text(plan.weight_bytes + plan.work.kv_bytes)
    time = "–" if plan.seconds_left is None else duration(plan.seconds_left)
    left = "refused" if plan.output.state == "refused" else f"{plan.rows_left:,}"
    return (f"{plan.survey.rows:,}", left, f"{bad:,}", f"{tokens:,}", memory, size_as_text(plan.disk_bytes), time)
