"""Formats the forecast of an evaluation as text and as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict

from ...configs.visible import visible
from ...runner.runs.throughput import duration
from ..evals.forecast import EvalForecast, TaskForecast
from ..terminal.tables import align_columns, count_text

_LABEL = 10


def eval_plan_as_text(plan: EvalForecast) -> str:
    """Returns the forecast as lines, and a table with a line for each task."""
    lines = [f"{label:<{_LABEL}}{visible(text)}" for label, text in _lines(plan)]
    heading = ["task", "request", "documents", "requests", "tokens", "scored", "generated"]
    rows = [heading, *(_cells(task) for task in plan.tasks)]
    if len(plan.tasks) > 1:
        total = [sum(getattr(task, name) for task in plan.tasks) for name in ("documents", "requests", "tokens", "scored", "generated")]
        rows.append(["all", "", *(f"{count:,}" for count in total)])
    return "\n".join([*lines, "", *align_columns(rows, 2)])


def eval_plan_as_json(plan: EvalForecast) -> str:
    """Returns the forecast as one JSON object; unknown values are null."""
    values = {
        "job": "eval",
        "model": plan.config.model.path,
        "output": plan.config.output.path,
        "requests": plan.requests,
        "done": plan.done,
        "complete": plan.is_complete,
        "differences": [str(difference) for difference in plan.differences],
        "tasks": [asdict(task) for task in plan.tasks],
        "seconds_left": plan.seconds,
        "tried": plan.tried,
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def _lines(plan: EvalForecast) -> Iterator[tuple[str, str]]:
    config, path = plan.config, plan.config.output.path
    yield "job", f"eval with {config.model.path}, {count_text(len(plan.tasks), 'task')}"
    if plan.differences:
        yield "output", f"{path}: a run of this config would be refused:"
        yield from (("", str(difference)) for difference in plan.differences)
    elif plan.is_complete:
        yield "output", f"{path}: complete already; the figures alone would be computed again. What follows is the whole run"
    elif plan.done:
        left = plan.requests - plan.done
        yield "output", f"{path}: {plan.done:,} of {plan.requests:,} requests have their answers, a run continues with the {left:,} left"
    else:
        yield "output", f"{path}: nothing is done there yet"
    if any(task.counted < task.requests for task in plan.tasks):
        most = max(task.counted for task in plan.tasks)
        yield "tokens", f"scaled up from at most {most:,} requests of a task"
    if plan.seconds is not None:
        yield (
            "time",
            f"about {duration(plan.seconds)}, by {count_text(plan.tried, 'request')} that were tried, without the load of the model",
        )
    elif not plan.is_complete:
        yield "time", "not known without a trial: --calibrate loads the model and answers some of the requests"


def _cells(task: TaskForecast) -> list[str]:
    about = "about " if task.counted < task.requests else ""
    tokens = [f"{about}{count:,}" if count else "–" for count in (task.tokens, task.scored)]
    generated = f"at most {task.generated:,}" if task.generated else "–"
    return [visible(task.task), task.kind, f"{task.documents:,}", f"{task.requests:,}", *tokens, generated]
