"""What a sweep's cells came to: sweep.arrow, with every statistic of every group, and the table at the end on stderr.

Reads the cells' own stats.arrow and summary.json; knows the statistics' names only to choose those that a terminal has room for.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..configs.cells import Overrides, plain
from ..runner.durable import replacing, room_on
from ..runner.paths import RunPaths
from .aligned import aligned, cut, figure, width_of
from .sweep import Ended

TABLE_FILE = "sweep.arrow"

_WIDTH, _SETTINGS_WIDTH, _LEAST_WIDTH = 110, 60, 8  # columns of a terminal: the table, its settings, one setting that is cut
# What a table at the end shows, in this order, where a cell has it: the column, its heading. A column's error ends in _stderr.
_SHOWN = {
    "token_perplexity": "ppl/token",
    "completion_perplexity": "completion ppl",
    "acc": "acc",
    "acc_norm": "acc_norm",
    "greedy_share": "greedy",
    "kl_mean": "KL",
    "perplexity_ratio": "ppl ratio",
    "agreement": "agreement",
    "bits_per_byte": "bits/byte",
    "word_perplexity": "ppl/word",
    "prompt_perplexity": "prompt ppl",
    "documents": "documents",
    "rows": "rows",
    "scored_tokens": "tokens",
    "completion_tokens": "tokens",
}
_FIXED = {"state": pa.string(), "exit_code": pa.int32(), "error": pa.string(), "quarantined": pa.int64(), "seconds": pa.float64()}

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


def closing_table(ended: Sequence[Ended], table: pa.Table) -> str:
    """The cells' settings and main statistics over all rows as aligned lines, and below them why cells failed."""
    first = {row["cell"]: row for row in reversed(table.to_pylist())}
    rows = [first[each.cell.name] for each in ended]
    columns = _settings([each.cell.settings for each in ended])
    reasons = list(dict.fromkeys(_reason(each) for each in ended if each.state == "failed"))
    states = [_state(each, reasons) for each in ended]
    if any(states):
        columns.append(["", *states])
    left, room = len(columns), _WIDTH - _width(columns)
    for name, heading in _SHOWN.items():
        if name not in table.schema.names or all(row[name] is None for row in rows):
            continue
        cells = ("" if state else figure(row[name], row.get(f"{name}_stderr")) for row, state in zip(rows, states, strict=True))
        column = [heading, *cells]
        room -= _width([column]) + 2
        if room < 0:
            break
        columns.append(column)
    lines = aligned(list(zip(*columns, strict=True)), left)
    return "\n".join([*lines, *(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))])


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
    return cut(text[::-1], width)[::-1]


def _width(columns: Sequence[Sequence[str]]) -> int:
    return max(map(width_of, aligned(list(zip(*columns, strict=True)), 0)))


def _state(each: Ended, reasons: list[str]) -> str:
    """What stands in place of the figures of a cell that is not complete."""
    if each.state == "failed":
        return f"failed [{reasons.index(_reason(each)) + 1}]"
    if each.state == "stopped" and each.summary is not None:
        return f"stopped at {each.summary.rows:,} of {each.summary.of:,} rows"
    return "not begun" if each.state == "waiting" else ""


def _reason(each: Ended) -> str:
    return f"{each.message} (exit code {each.code})"


def _statistics(each: Ended) -> pa.Table:
    path = RunPaths(Path(each.cell.config.output.path)).stats
    if each.state != "complete" or not path.is_file():
        return pa.table({})
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _fixed(each: Ended) -> Row:
    seconds = None
    if each.summary is not None:
        seconds = each.summary.seconds if each.summary.worked else _stored_seconds(each)
    return {
        "state": each.state,
        "exit_code": each.code if each.state == "failed" else None,
        "error": each.message or None,
        "quarantined": None if each.summary is None else each.summary.errors,
        "seconds": seconds,
    }


def _stored_seconds(each: Ended) -> float | None:
    try:
        return float(json.loads(RunPaths(Path(each.cell.config.output.path)).summary.read_bytes())["session"]["seconds"])
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
