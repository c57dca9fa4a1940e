"""Collects the results of a sweep's cells: sweep.arrow with all statistics, and the table on stderr at the end.

Reads the cells' own stats.arrow and summary.json. The names of figures and the notes on them come from score_table.py.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.cells import Overrides, plain
from ...runner.files.atomic import replacing
from ...runner.files.checked_json import read_document
from ...runner.files.disk_space import room_on
from ...runner.runs.run_files import TABLE_FILE, stored_statistics
from ...runner.store.paths import RunPaths
from ..classify.closing_table import main_figures
from ..embed.vector_statistics import vector_figures
from ..statistics.score_table import DIVERGENCE, Column, main_columns, notes
from ..terminal.tables import align_columns, count_text, figure, shorten, width_of
from .sweep import CellOutcome

_WIDTH, _SETTINGS_WIDTH, _LEAST_WIDTH = 110, 60, 8  # columns of a terminal: the table, its settings, one setting that is cut
_COUNTS = ("documents", "rows", "labelled", "tokens")  # headings of the last columns
GENERATED: list[Column] = [
    ("completion ppl", lambda row: figure(row["completion_perplexity"])),
    ("prompt ppl", lambda row: figure(row["prompt_perplexity"])),
    ("rows", lambda row: figure(row["rows"])),
    ("tokens", lambda row: figure(row["completion_tokens"])),
]
ROLLED: list[Column] = [
    ("reward", lambda row: figure(row["reward"], row.get("reward_stderr"))),
    ("groups", lambda row: figure(row["groups"])),
    ("dropped", lambda row: figure(row.get("dropped") or None)),
    ("nothing to compare", lambda row: figure(row["degenerate"])),
    ("truncated", lambda row: figure(row["truncated"])),
    ("tokens", lambda row: figure(row["completion_tokens"])),
]
_FIXED = {"state": pa.string(), "exit_code": pa.int32(), "error": pa.string(), "quarantined": pa.int64(), "seconds": pa.float64()}

DROPPED = "Rewards are of the groups that were kept: dropped ones are in no other figure."

_DAMAGED = "figures damaged: stats.arrow or summary.json of the cell is gone or not as it was written; the same command makes both again"

Row = dict[str, Any]


def sweep_table(outcomes: Sequence[CellOutcome]) -> pa.Table:
    """Returns one row for each cell and group of its statistics, and one row for a cell that is not complete.

    Columns: cell; state; exit_code and error (of a failed cell); quarantined (rows); seconds (of the last start that worked);
    the settings that cells change, by their dotted keys, also where a cell leaves the base's value; and all columns of the
    cells' stats.arrow, null where a cell has no such statistic.
    """
    statistics = [_statistics(outcome) for outcome in outcomes]
    settings = {key: [outcome.cell.settings[key] for outcome in outcomes] for key in outcomes[0].cell.settings}
    counts = [max(1, table.num_rows) for table in statistics]
    columns: dict[str, pa.Array] = {
        "cell": pa.array(_repeated([outcome.cell.name for outcome in outcomes], counts), pa.string()),
        **{name: pa.array(_repeated([_fixed(outcome)[name] for outcome in outcomes], counts), kind) for name, kind in _FIXED.items()},
        **{key: pa.array(_repeated(_typed(values), counts)) for key, values in settings.items()},
    }
    padded = [table if table.num_rows else pa.table({"": pa.nulls(1)}) for table in statistics]
    joined = pa.concat_tables(padded, promote_options="permissive")
    for name in joined.schema.names:
        if name:
            columns[name] = joined.column(name)
    return pa.table(columns)


def write_sweep_table(table: pa.Table, folder: Path) -> None:
    """Writes the table to sweep.arrow in the sweep's folder, atomically."""
    with room_on(folder), replacing(folder / TABLE_FILE) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def closing_table(outcomes: Sequence[CellOutcome]) -> str:
    """Returns the cells' settings and main statistics over all rows as aligned lines, then notes, and why cells failed."""
    rows = [_over_all(outcome) for outcome in outcomes]
    columns = setting_columns([outcome.cell.settings for outcome in outcomes])
    reasons = list(dict.fromkeys(_reason(outcome) for outcome in outcomes if outcome.state == "failed"))
    states = [_state(outcome, reasons) for outcome in outcomes]
    if any(states):
        columns.append(["", *states])
    left, room = len(columns), _WIDTH - _width(columns)
    for column in [*_circumstances(outcomes, rows), *_figures(rows)]:
        room -= _width([column]) + 2
        if room < 0:
            break
        columns.append(column)
    lines = align_columns(list(zip(*columns, strict=True)), left)
    marked = any(cell.endswith("*") for column in columns[left:] for cell in column)
    lines += _noted(outcomes, rows, marked)
    if any(row.get("dropped") for row in rows):
        lines.append(DROPPED)
    lines += [f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join(lines + ([_DAMAGED] if any(map(_is_damaged, outcomes)) else []))


def _over_all(outcome: CellOutcome) -> Row:
    """Returns a complete cell's statistics over all rows; nothing for another cell."""
    table = _statistics(outcome)
    return table.slice(0, 1).to_pylist()[0] if table.num_rows else {}


def _circumstances(outcomes: Sequence[CellOutcome], rows: Sequence[Row]) -> list[list[str]]:
    """Returns columns for the context where cells differ in it, and for quarantined rows where there are any."""
    columns: list[list[str]] = []
    contexts = [row.get("context") for row in rows]
    if "score.context" not in outcomes[0].cell.settings and len({context for context in contexts if context is not None}) > 1:
        columns.append(["context", *("" if context is None else figure(context) for context in contexts)])
    quarantined = [outcome.summary.errors if outcome.summary else 0 for outcome in outcomes]
    if any(quarantined):
        columns.append(["quarantined", *map(figure, quarantined)])
    return columns


def _figures(rows: Sequence[Row]) -> list[list[str]]:
    """Returns a column for each figure of the cells, the main ones first. A * marks a cell that a note is about."""
    shown = [_shown(row) for row in rows]
    headings = dict.fromkeys(heading for cells in sorted(shown, key=len, reverse=True) for heading in cells)
    return [
        [heading, *(cells.get(heading, "") for cells in shown)]
        for heading in headings
        if any(cells.get(heading, "–") != "–" for cells in shown)
    ]


def _shown(row: Row) -> dict[str, str]:
    if not row:
        return {}
    if "mean_score" in row or "mean_margin" in row:
        return dict(main_figures(row))
    if "norm_mean" in row:
        return dict(vector_figures(row))
    if "completion_perplexity" in row:
        columns = GENERATED
    elif "degenerate" in row:
        columns = ROLLED
    else:
        first, *more = [column for column in main_columns(row) if column[0] not in _COUNTS]
        counts = [column for column in main_columns(row) if column[0] in _COUNTS]
        columns = [first, *(DIVERGENCE if row.get("kl_mean") is not None else []), *more, *counts]
    return {heading.removesuffix("*"): of(row) + ("*" if heading.endswith("*") else "") for heading, of in columns}


def _noted(outcomes: Sequence[CellOutcome], rows: Sequence[Row], marked: bool) -> list[str]:
    """Returns the notes on the cells' figures, each once, with the cells' names where it is not about all.

    marked: some cell has a *, so its note is needed.
    """
    scored = [(outcome.cell, row) for outcome, row in zip(outcomes, rows, strict=True) if "first_token_scored" in row]
    whose: dict[str, list[str]] = {}
    for cell, row in scored:
        for note in notes(row):
            alone = note.startswith("One document alone")
            text = "One document alone has no error clustered by document; sweep.arrow has the token-wise one." if alone else note
            whose.setdefault(text, []).append(cell.label)
    return [
        note if len(labels) == len(scored) or note.startswith(("*", "±")) else f"{_some_of(labels)}: {note}"
        for note, labels in whose.items()
        if marked or not note.startswith("*")
    ]


def _some_of(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1:,} more"


def setting_columns(cells: Sequence[Overrides]) -> list[list[str]]:
    """Returns a column for each key of ``cells``, its heading first. Where room is short, keys and the widest values are cut in front."""
    keys = list(cells[0])
    texts = [[plain(cell[key]) for cell in cells] for key in keys]
    least = [_telling_width(column) for column in texts]
    values = [[_end_of(text, max(_WIDTH, width)) for text in column] for width, column in zip(least, texts, strict=True)]
    whole = [[key, *column] for key, column in zip(keys, values, strict=True)]
    if sum(max(map(width_of, column)) for column in whole) <= _SETTINGS_WIDTH:
        return whole
    columns = [[heading, *column] for heading, column in zip(_short(keys), values, strict=True)]
    widths = [max(map(width_of, column)) for column in columns]
    while sum(widths) > _SETTINGS_WIDTH:
        spare = [width - max(_LEAST_WIDTH, needed) for width, needed in zip(widths, least, strict=True)]
        if max(spare) <= 0:
            break
        widths[max(range(len(widths)), key=lambda i: (spare[i] > 0, widths[i]))] -= 1
    return [[heading, *(_end_of(text, width) for text in texts)] for width, (heading, *texts) in zip(widths, columns, strict=True)]


def _telling_width(texts: Sequence[str]) -> int:
    """Returns the least width at which the ends of different texts differ, with the whole name of the folder where paths do."""
    distinct = set(texts)
    widest = max(map(width_of, distinct))
    least = next((width for width in range(1, widest) if len({_end_of(text, width) for text in distinct}) == len(distinct)), widest)
    starts = [text.rfind("/", 0, max(0, len(text) - least + 1)) for text in distinct]
    return max(least, *(1 + len(text) - start for text, start in zip(distinct, starts, strict=True) if start >= 0), 0)


def _end_of(text: str, width: int) -> str:
    """Cuts ``text`` at its front, since paths differ at their end."""
    return shorten(text[::-1], width)[::-1]


def _width(columns: Sequence[Sequence[str]]) -> int:
    return max(map(width_of, align_columns(list(zip(*columns, strict=True)), 0)))


def _state(outcome: CellOutcome, reasons: list[str]) -> str:
    """Returns the words in place of the figures of a cell that is not complete."""
    if outcome.state == "failed":
        return f"failed [{reasons.index(_reason(outcome)) + 1}]"
    if outcome.state == "stopped" and outcome.summary is not None:
        return f"stopped at {outcome.summary.rows:,} of {count_text(outcome.summary.of, 'row')}"
    if _is_damaged(outcome):
        return "figures damaged"
    return "not begun" if outcome.state == "waiting" else ""


def _reason(outcome: CellOutcome) -> str:
    return f"{outcome.message} (exit code {outcome.code})"


def _statistics(outcome: CellOutcome) -> pa.Table:
    stored = _stored(outcome)
    return pa.table({}) if stored is None else stored


def _stored(outcome: CellOutcome) -> pa.Table | None:
    return stored_statistics(Path(outcome.cell.config.output.path)) if outcome.state == "complete" else None


def _is_damaged(outcome: CellOutcome) -> bool:
    """Returns whether the cell is complete but its stored figures are missing or not as its run wrote them."""
    return outcome.state == "complete" and _stored(outcome) is None


def _fixed(outcome: CellOutcome) -> Row:
    seconds = None
    if outcome.summary is not None:
        seconds = outcome.summary.seconds if outcome.summary.worked else _stored_seconds(outcome)
    return {
        "state": outcome.state,
        "exit_code": outcome.exit_code,
        "error": outcome.message or None,
        "quarantined": None if outcome.summary is None else outcome.summary.errors,
        "seconds": seconds,
    }


def _stored_seconds(outcome: CellOutcome) -> float | None:
    try:
        return float(read_document(RunPaths(Path(outcome.cell.config.output.path)).summary)["session"]["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _typed(values: list[Any]) -> list[Any]:
    """Returns values of one plain type as they are. Mixed types, lists and mappings all become JSON texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str} or kinds <= {bool} or kinds <= {int, float}:
        return [float(value) if kinds == {int, float} and value is not None else value for value in values]
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _short(keys: Sequence[str]) -> list[str]:
    """Returns each key as the fewest of its last names that tell it from the others."""
    short: list[str] = []
    for key in keys:
        names = key.split(".")
        ends = [".".join(names[-n:]) for n in range(1, len(names) + 1)]
        short.append(next(end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1 or end == key))
    return short
