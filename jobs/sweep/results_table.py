"""What a sweep's cells came to: sweep.arrow, with every statistic of every group, and the table at the end on stderr.

Reads the cells' own stats.arrow and summary.json. What a figure is called and what is noted of it is measure_table.py's.
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
from ...runner.runs.run_files import stored_statistics
from ...runner.store.paths import RunPaths
from ..statistics.score_table import DIVERGENCE, Column, main_columns, notes
from ..terminal.tables import align_columns, figure, shorten, width_of
from .sweep import Ended

TABLE_FILE = "sweep.arrow"

_WIDTH, _SETTINGS_WIDTH, _LEAST_WIDTH = 110, 60, 8  # columns of a terminal: the table, its settings, one setting that is cut
_COUNTS = ("documents", "rows", "labelled", "tokens")  # headings of what stands last
GENERATED: list[Column] = [
    ("completion ppl", lambda row: figure(row["completion_perplexity"])),
    ("prompt ppl", lambda row: figure(row["prompt_perplexity"])),
    ("rows", lambda row: figure(row["rows"])),
    ("tokens", lambda row: figure(row["completion_tokens"])),
]
ROLLED: list[Column] = [
    ("reward", lambda row: figure(row["reward"])),
    ("groups", lambda row: figure(row["groups"])),
    ("nothing to compare", lambda row: figure(row["degenerate"])),
    ("truncated", lambda row: figure(row["truncated"])),
    ("tokens", lambda row: figure(row["completion_tokens"])),
]
_FIXED = {"state": pa.string(), "exit_code": pa.int32(), "error": pa.string(), "quarantined": pa.int64(), "seconds": pa.float64()}

_DAMAGED = "figures damaged: stats.arrow or summary.json of the cell is gone or not as it was written; the same command makes both again"

Row = dict[str, Any]


def sweep_table(ended: Sequence[Ended]) -> pa.Table:
    """One row a cell and group of its statistics; one for a cell that is not complete, without statistics.

    Columns: cell, state, exit_code and error (of a failed cell), quarantined (rows), seconds (of the last start that worked);
    the settings that cells change, by their dotted keys, also where a cell leaves the base's value; and all columns of the
    cells' stats.arrow, null where a cell has no such statistic.
    """
    statistics = [_statistics(each) for each in ended]
    settings = {key: [each.cell.settings[key] for each in ended] for key in ended[0].cell.settings}
    counts = [max(1, table.num_rows) for table in statistics]
    columns: dict[str, pa.Array] = {
        "cell": pa.array(_repeated([each.cell.name for each in ended], counts), pa.string()),
        **{name: pa.array(_repeated([_fixed(each)[name] for each in ended], counts), kind) for name, kind in _FIXED.items()},
        **{key: pa.array(_repeated(_typed(values), counts)) for key, values in settings.items()},
    }
    beside = [table if table.num_rows else pa.table({"": pa.nulls(1)}) for table in statistics]
    joined = pa.concat_tables(beside, promote_options="permissive")
    for name in joined.schema.names:
        if name:
            columns[name] = joined.column(name)
    return pa.table(columns)


def write_sweep_table(table: pa.Table, folder: Path) -> None:
    """Puts the table at sweep.arrow in the sweep's folder, whole."""
    with room_on(folder), replacing(folder / TABLE_FILE) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def closing_table(ended: Sequence[Ended]) -> str:
    """The cells' settings and main statistics over all rows as aligned lines; below them notes, and why cells failed."""
    rows = [_over_all(each) for each in ended]
    columns = _settings([each.cell.settings for each in ended])
    reasons = list(dict.fromkeys(_reason(each) for each in ended if each.state == "failed"))
    states = [_state(each, reasons) for each in ended]
    if any(states):
        columns.append(["", *states])
    left, room = len(columns), _WIDTH - _width(columns)
    for column in [*_circumstances(ended, rows), *_figures(rows)]:
        room -= _width([column]) + 2
        if room < 0:
            break
        columns.append(column)
    lines = align_columns(list(zip(*columns, strict=True)), left)
    marked = any(cell.endswith("*") for column in columns[left:] for cell in column)
    lines += _noted(ended, rows, marked)
    lines += [f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join(lines + ([_DAMAGED] if any(map(_is_damaged, ended)) else []))


def _over_all(each: Ended) -> Row:
    """A complete cell's statistics over all rows, by the columns that it has; none of another."""
    table = _statistics(each)
    return table.slice(0, 1).to_pylist()[0] if table.num_rows else {}


def _circumstances(ended: Sequence[Ended], rows: Sequence[Row]) -> list[list[str]]:
    """Columns of what stands beside the settings: the context where it is not alike, the rows that are not in the figures."""
    found: list[list[str]] = []
    contexts = [row.get("context") for row in rows]
    if "score.context" not in ended[0].cell.settings and len({context for context in contexts if context is not None}) > 1:
        found.append(["context", *("" if context is None else figure(context) for context in contexts)])
    quarantined = [each.summary.errors if each.summary else 0 for each in ended]
    if any(quarantined):
        found.append(["quarantined", *map(figure, quarantined)])
    return found


def _figures(rows: Sequence[Row]) -> list[list[str]]:
    """A column for each figure of the cells, those without which the others say little first; * at a cell whose note says why."""
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
    if "completion_perplexity" in row:
        found = GENERATED
    elif "degenerate" in row:
        found = ROLLED
    else:
        first, *more = [column for column in main_columns(row) if column[0] not in _COUNTS]
        counts = [column for column in main_columns(row) if column[0] in _COUNTS]
        found = [first, *(DIVERGENCE if row.get("kl_mean") is not None else []), *more, *counts]
    return {heading.removesuffix("*"): of(row) + ("*" if heading.endswith("*") else "") for heading, of in found}


def _noted(ended: Sequence[Ended], rows: Sequence[Row], marked: bool) -> list[str]:
    """The notes on the cells' figures, once each, and whose they are where they are not everyone's; on * where some are ``marked``."""
    scored = [(each.cell, row) for each, row in zip(ended, rows, strict=True) if "first_token_scored" in row]
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


def _settings(cells: Sequence[Overrides]) -> list[list[str]]:
    """A column for each key: with the whole key where there is room, with the widest values cut where there is too little."""
    keys = list(cells[0])
    values = [[_end_of(plain(cell[key]), _WIDTH) for cell in cells] for key in keys]
    whole = [[key, *column] for key, column in zip(keys, values, strict=True)]
    if sum(max(map(width_of, column)) for column in whole) <= _SETTINGS_WIDTH:
        return whole
    columns = [[heading, *column] for heading, column in zip(_short(keys), values, strict=True)]
    widths = [max(map(width_of, column)) for column in columns]
    while sum(widths) > _SETTINGS_WIDTH and max(widths) > _LEAST_WIDTH:
        widths[widths.index(max(widths))] -= 1
    return [[heading, *(_end_of(text, width) for text in texts)] for width, (heading, *texts) in zip(widths, columns, strict=True)]


def _end_of(text: str, width: int) -> str:
    """``text`` cut at its front: paths differ at their end."""
    return shorten(text[::-1], width)[::-1]


def _width(columns: Sequence[Sequence[str]]) -> int:
    return max(map(width_of, align_columns(list(zip(*columns, strict=True)), 0)))


def _state(each: Ended, reasons: list[str]) -> str:
    """What stands in place of the figures of a cell that is not complete."""
    if each.state == "failed":
        return f"failed [{reasons.index(_reason(each)) + 1}]"
    if each.state == "stopped" and each.summary is not None:
        return f"stopped at {each.summary.rows:,} of {each.summary.of:,} rows"
    if _is_damaged(each):
        return "figures damaged"
    return "not begun" if each.state == "waiting" else ""


def _reason(each: Ended) -> str:
    return f"{each.message} (exit code {each.code})"


def _statistics(each: Ended) -> pa.Table:
    found = _stored(each)
    return pa.table({}) if found is None else found


def _stored(each: Ended) -> pa.Table | None:
    return stored_statistics(Path(each.cell.config.output.path)) if each.state == "complete" else None


def _is_damaged(each: Ended) -> bool:
    """Whether the cell is complete, and what its folder has of its figures is not what its run wrote."""
    return each.state == "complete" and _stored(each) is None


def _fixed(each: Ended) -> Row:
    seconds = None
    if each.summary is not None:
        seconds = each.summary.seconds if each.summary.worked else _stored_seconds(each)
    return {
        "state": each.state,
        "exit_code": each.exit_code,
        "error": each.message or None,
        "quarantined": None if each.summary is None else each.summary.errors,
        "seconds": seconds,
    }


def _stored_seconds(each: Ended) -> float | None:
    try:
        return float(read_document(RunPaths(Path(each.cell.config.output.path)).summary)["session"]["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _typed(values: list[Any]) -> list[Any]:
    """Values of one plain type as they are; those of several, lists and mappings as text, all of them as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str} or kinds <= {bool} or kinds <= {int, float}:
        return [float(value) if kinds == {int, float} and value is not None else value for value in values]
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _short(keys: Sequence[str]) -> list[str]:
    """Each key by as few of its last names as tell it from the others."""
    found: list[str] = []
    for key in keys:
        names = key.split(".")
        ends = [".".join(names[-n:]) for n in range(1, len(names) + 1)]
        found.append(next(end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1 or end == key))
    return found
