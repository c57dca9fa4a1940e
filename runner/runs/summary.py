"""What a run has come to, in figures: for the last line, for summary.json, and for the table of a sweep."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

SESSION_FIGURES = (
    "prompt_tokens",
    "prefilled_tokens",
    "generated_tokens",
    "scored_tokens",
    "seconds",
    "padding_waste",
    "peak_memory_bytes",
)


@dataclass(slots=True, frozen=True)
class Summary:
    """How a run ended. Counts of rows, records, errors, dropped groups and refused policies are the run's; tokens, seconds and waste
    this session's.

    ``worked``: False when nothing was left to do. ``reasons``: why rows were quarantined, a line each. ``closing``: what of the
    statistics is shown at the end, if they are complete. ``prefilled_tokens`` went through the model before decoding: less than
    ``prompt_tokens`` where prompts begin alike.
    """

    job: str
    output: Path
    rows: int
    of: int
    records: int
    errors: int
    dropped: int
    refused: int
    prompt_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    scored_tokens: int
    seconds: float
    padding_waste: float
    peak_memory_bytes: int
    complete: bool
    worked: bool
    reasons: tuple[str, ...]
    closing: str


def overall_figures(table: pa.Table) -> dict[str, Any]:
    """The first row of a table of statistics, that over all, as summary.json holds it.

    JSON knows no infinity, so that is null (``minus_infinity`` says why).
    """
    row: dict[str, Any] = table.slice(0, 1).to_pylist()[0]
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
        if name not in ("of", "group")
    }
