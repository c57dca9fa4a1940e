"""The figures of a run at its end: for the closing line, for summary.json, and for the table of a sweep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..files.checked_json import json_number

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
    """The end of a run, in figures.

    Rows, records, errors, dropped groups and refused policies are counted over the run; tokens, seconds and padding over this session.
    worked: False when nothing was left to do. reasons: why rows were quarantined, a line each. closing: the statistics that are shown
    at the end, if they are complete. prefilled_tokens: those that went through the model before decoding, fewer than
    ``prompt_tokens`` where prompts share a prefix.
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
    """Returns the first row of a table of statistics, over all records, as summary.json holds it.

    JSON has no infinity, so it becomes null (``minus_infinity`` says why).
    """
    row: dict[str, Any] = table.slice(0, 1).to_pylist()[0]
    return {name: json_number(value) if isinstance(value, float) else value for name, value in row.items() if name not in ("of", "group")}
