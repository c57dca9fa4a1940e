"""The figures of a plan by name, and as JSON."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from ...runner.estimate.plan import Plan

_SHOWN = ("min", "median", "mean", "p95", "max")


def plan_as_json(plan: Plan) -> str:
    """Returns the plan as one JSON object."""
    return json.dumps(plan_values(plan), indent=2, ensure_ascii=False)


def plan_values(plan: Plan) -> dict[str, Any]:
    """Returns the plan's figures by name; sums are of all rows, unknown values null."""
    survey, measured, output = plan.survey, plan.calibration, plan.output
    return {
        "job": plan.config.job,
        "model": plan.config.model.path,
        "output": {"path": plan.config.output.path, "state": output.state, "rows": output.rows, "reasons": output.differences},
        "rows": survey.rows,
        "rows_read": survey.rows_read,
        "rows_left": plan.rows_left,
        "input_bytes": plan.input_bytes,
        "problems": [asdict(problem) for problem in survey.problems.values()],
        "rows_guided": round(survey.factor * survey.guided_rows),
        "grammars": len(survey.grammars),
        "rows_full": round(survey.factor * survey.full_rows),
        "rows_cut": round(survey.factor * survey.cut_rows),
        "tokens": {"sum": plan.prompt_tokens, **(length_figures(survey.lengths) if survey.lengths else {})},
        "pictures": round(survey.factor * len(survey.picture_tokens)),
        "picture_tokens": round(survey.factor * sum(survey.picture_tokens)),
        "texts": round(survey.factor * survey.texts),
        "completions": plan.completions,
        "generated_tokens": {"most": plan.work.generated, "expected": None if plan.expected is None else plan.expected.generated},
        "scored_tokens": plan.work.scored,
        "fed_tokens": plan.work.prefilled,
        "shared_tokens": plan.shared_tokens,
        "common_prefix_tokens": None if survey.common_prefix is None else len(survey.common_prefix),
        "batches": plan.work.calls,
        "padding_waste": round((plan.expected or plan.work).padding_waste, 4),
        "way": plan.way,
        "weight_bytes": plan.weight_bytes,
        "tower_bytes": plan.tower_bytes,
        "copy_bytes": plan.copy_bytes,
        "unchecked_images": list(plan.uncompared),
        "kv_bytes": round(plan.work.kv_bytes),
        "kv_bytes_room": round(plan.limits.kv_bytes),
        "kv_bytes_aside": round(plan.reserved_bytes),
        "memory_bytes": plan.memory_bytes,
        "disk_bytes": plan.disk_bytes,
        "free_bytes": plan.free_bytes,
        "seconds": plan.seconds,
        "seconds_left": plan.seconds_left,
        "tokens_per_second": plan.tokens_per_second,
        "calibration": None
        if measured is None
        else {"rows": measured.rows, "seconds": measured.seconds, "unfinished": measured.unfinished},
    }


def length_figures(values: list[int]) -> dict[str, float]:
    """Returns the figures of ``_SHOWN`` for lengths."""
    lengths = np.array(values)
    p95 = int(np.percentile(lengths, 95))
    shown = (int(lengths.min()), int(np.median(lengths)), round(float(lengths.mean()), 1), p95, int(lengths.max()))
    return dict(zip(_SHOWN, shown, strict=True))
