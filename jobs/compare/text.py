"""Shows a comparison of two runs as text for a terminal, and as JSON. Computes nothing."""

import json
from dataclasses import asdict
from typing import Any

from ...configs.cells import plain
from ...runner.files.checked_json import json_number
from ..terminal.tables import align_columns, count_text, figure, shorten
from .compare import ComparedRun, RunComparison
from .paired_records import Figures, PairedRecords

_VALUE_WIDTH, _KEY_WIDTH = 36, 24
_NAMES = {
    "nll_difference": "NLL (nats per {unit}), B − A; below 0: B is better",
    "perplexity_ratio": "perplexity, B / A",
    "acc_a": "acc of A",
    "acc_b": "acc of B",
    "acc_difference": "acc, B − A",
    "both_right": "both right",
    "only_a_right": "only A right",
    "only_b_right": "only B right",
    "neither_right": "neither right",
    "same_prediction": "same prediction",
    "same": "same completion",
    "logprob_difference": "logprob of a completion, B − A",
    "reward_a": "mean reward of A",
    "reward_b": "mean reward of B",
    "reward_difference": "reward, B − A",
}
_LEFT_OUT = {
    "left_out_unlike_tokens": "with other tokens in B",
    "left_out_unlike_bytes": "scored over other bytes in B",
    "left_out_nothing_scored": "with nothing that both score",
    "left_out_without_a_chance": "without a chance (logprob -inf)",
}
_PERCENTILES = ("min", "p25", "median", "p75", "max")


def run_comparison_as_json(comparison: RunComparison) -> str:
    """Returns the comparison as one JSON object; NaN and infinities are null."""
    values = asdict(comparison)
    if comparison.paired is not None:
        del values["paired"]["values"]
    return json.dumps(_json(values), indent=2, ensure_ascii=False, default=str)


def run_comparison_as_text(comparison: RunComparison) -> str:
    """Returns the comparison as blocks of aligned lines: the runs, the settings that differ, statistics, and documents.

    For runs of two kinds it returns the notes alone, since nearly all of their settings differ.
    """
    alike = comparison.a.kind == comparison.b.kind or comparison.paired is not None
    blocks = [
        align_columns([["", "", ""], *([name, *run_cells(side)] for name, side in (("A", comparison.a), ("B", comparison.b)))], 3)[1:],
        [f"Note: {note}." for note in comparison.notes],
        *([_settings(comparison), _statistics(comparison)] if alike else []),
        *(_paired(comparison.paired) if comparison.paired else []),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def run_cells(side: ComparedRun) -> list[str]:
    """Returns a run's path, and its kind, records and state."""
    state = "complete" if side.complete else f"{side.done:,} of {count_text(side.of, 'row')}"
    errors = f", {side.errors:,} quarantined" if side.errors else ""
    errors += f", {count_text(side.dropped, 'group')} dropped" if side.dropped else ""
    return [str(side.path), f"{side.kind}, {count_text(side.records, 'record')}, {state}{errors}"]


def _settings(comparison: RunComparison) -> list[str]:
    if not comparison.settings:
        return ["Settings, weights and tokenizers are the same."]
    return align_columns([["settings that differ", "A", "B"], *setting_lines(comparison)], 3)


def setting_lines(comparison: RunComparison) -> list[list[str]]:
    """Returns each setting that differs, with the values of A and B."""
    return [[key, *(_value(key, value) for value in values)] for key, values in comparison.settings.items()]


def _value(key: str, value: Any) -> str:
    """Returns a setting's value; of a fingerprint its first digits."""
    if key.endswith(" (contents)") and isinstance(value, str) and value != "none":
        return value.removeprefix("sha256 ")[:12]
    if key == "score.reference" and value is None:
        return "none"
    return "–" if value is None else shorten(plain(value), _VALUE_WIDTH)


def _statistics(comparison: RunComparison) -> list[str]:
    return align_columns([["statistics", "A", "B"], *statistic_lines(comparison)], 1)


def statistic_lines(comparison: RunComparison) -> list[list[str]]:
    """Returns every statistic that is not null in both, with its error where it has one."""
    found = comparison.statistics
    rows: list[list[str]] = []
    for name, values in found.items():
        if values == (None, None) or name.removesuffix("_stderr") in found.keys() - {name}:
            continue
        errors = found.get(f"{name}_stderr", (None, None))
        rows.append([name, *(_number(value, error) for value, error in zip(values, errors, strict=True))])
    return rows


def _paired(paired: PairedRecords) -> list[list[str]]:
    """Returns the blocks on single documents."""
    title, notes = pairing_notes(paired)
    lines = largest_differences(paired)
    most = [f"The documents that differ most, by {paired.measure}:", *align_columns(lines, len(lines[0]) - 3)] if lines else []
    return [[title, *notes, *_figures(paired)], most]


def pairing_notes(paired: PairedRecords) -> tuple[str, list[str]]:
    """Returns how many documents are compared, and notes on those left out."""
    things = "completions" if "completions" in paired.figures else "documents"
    apart = [f"{count:,} in {name} alone" for name, count in (("A", paired.only_a), ("B", paired.only_b)) if count]
    title = f"{paired.matched:,} {things} in both, joined by {paired.joined_by}" + (f" ({', '.join(apart)})" if apart else "")
    return title, _notes(paired.figures)


def _notes(figures: Figures) -> list[str]:
    """Says what the figures leave out, and why."""
    if "reward_difference" in figures:
        unrewarded = figures["unrewarded"]
        return [f"{unrewarded:,} of them have no reward in A or B and are not in its figures"] if unrewarded else []
    if "unit" not in figures:
        left_out = figures.get("left_out")
        return [f"{left_out:,} of them left out: without a label"] if left_out else []
    reasons = [f"{figures[name]:,} {reason}" for name, reason in _LEFT_OUT.items() if figures.get(name)]
    notes = [f"{figures['left_out']:,} of them left out: {', '.join(reasons)}"] if reasons else []
    if figures["unit"] == "byte":
        notes.append(f"the mean is over bytes, since {figures['unlike_tokens']:,} have other tokens in B")
    alone = {name: figures.get(f"tokens_only_{name}") for name in "ab"}
    return [*notes, *(f"tokens that {name.upper()} alone scores are not compared: {count:,}" for name, count in alone.items() if count)]


def figure_lines(paired: PairedRecords) -> list[list[str]]:
    """Returns name and value, with its error, of each figure."""
    found = paired.figures
    return [
        [heading.format(unit=found.get("unit")), _number(found[name], found.get(f"{name}_stderr"))]
        for name, heading in _NAMES.items()
        if name in found
    ]


def _figures(paired: PairedRecords) -> list[str]:
    found = paired.figures
    lines = align_columns([["", ""], *([f"  {name}", value] for name, value in figure_lines(paired))], 1)[1:]
    if found.get("first_difference_min") is not None:
        at = ", ".join(f"{name} {found[f'first_difference_{name}']:,}" for name in _PERCENTILES)
        lines.append(f"  first token that differs, counted from 0, where completions do: {at}")
    return lines


def largest_differences(paired: PairedRecords) -> list[list[str]]:
    """Returns headings, then the documents that differ most: names, A, B and B − A; nothing where none differs."""
    if not paired.most:
        return []
    names = [name for name in ("row", "row_b", "round", "sample", "key") if name in paired.most[0]]
    if all(document["row"] == document["row_b"] for document in paired.most):
        names.remove("row_b")
    if all(document["key"] == str(document["row"]) for document in paired.most):
        names.remove("key")
    headings = {"row_b": "row of B"} if "row_b" in names else {}
    rows = [
        [
            *(shorten(plain(document[name]), _KEY_WIDTH) for name in names),
            *(figure(document[name]) for name in ("a", "b", "difference")),
        ]
        for document in paired.most
    ]
    heading = [*(headings.get(name, name) for name in names), "A", "B", "B − A"]
    return [heading, *rows]


def _number(value: object, error: object = None) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return str(value)
    return figure(value, error if isinstance(error, float) else None)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner) for inner in value]
    return json_number(value) if isinstance(value, float) else value
