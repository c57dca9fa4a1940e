"""Builds the report of a sweep: cells as a heat map, and their main figure against each numeric setting and against bits.

Reads sweep.json and sweep.arrow. Each cell has its own report beside its results. Knows no records.
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...runner.core.errors import RunDirError
from ...runner.runs.run_files import TABLE_FILE, cells_of
from ...runner.runs.throughput import duration
from ..sweep.results_table import DROPPED
from ..terminal.tables import count_text, figure
from .charts import Chart, ChartPoint, lines
from .page import Card, Page, PageSection, Table, TableCell

Row = dict[str, Any]

# Statistic, heading, and whether larger is better. The first that cells have is drawn.
_FIGURES = (
    ("token_perplexity", "perplexity", False),
    ("bits_per_byte", "bits per byte", False),
    ("kl_mean", "mean KL, nats", False),
    ("agreement", "same top token", True),
    ("greedy_share", "greedy", True),
    ("acc", "acc", True),
    ("acc_norm", "acc_norm", True),
    ("acc_bytes", "acc_bytes", True),
    ("acc_tokens", "acc_tokens", True),
    ("completion_perplexity", "completion perplexity", False),
    ("prompt_perplexity", "prompt perplexity", False),
    ("reward", "mean reward", True),
    ("mean_margin", "mean margin", True),
    ("mean_score", "mean score", True),
    ("seconds", "seconds", False),
)
_SERIES = 6  # lines in a chart
_DTYPES = {"float32": 32, "float16": 16, "bfloat16": 16}


def sweep_page(folder: Path) -> Page:
    """Returns the report of the sweep in ``folder``. Raises RunDirError where its files are missing or damaged."""
    rows, settings = _read(folder)
    whole = [row for row in rows if row.get("of") in (None, "all")]
    done = [row for row in whole if row["state"] == "complete"]
    page = Page(
        title=folder.absolute().name,
        subtitle=f"sweep of {count_text(len(whole), 'cell')} over {', '.join(settings)}",
        footer=f"Drawn on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z} from {folder.absolute()}. Each cell is a run of its own there; "
        "mlx-bulk report CELL draws it.",
    )
    if len(done) < len(whole):
        page.banner.append(f"{len(whole) - len(done):,} of {len(whole):,} cells are not complete; what they have is not drawn.")
        page.banner += [f"{row['cell']}: {row['error']}" for row in whole if row["error"]]
    page.cards = list(_cards(whole, done, settings))
    charts = list(_charts(done, settings))
    tables = [_heat_map(whole, settings)]
    words = "In each column of figures the best cell is the darkest and bold; shades go by rank."
    if any(row.get("dropped") for row in done):
        words += f" {DROPPED}"
    page.sections = [PageSection("cells", "Cells", words, tables=tables)]
    if charts:
        page.sections.append(PageSection("curves", "Against the settings", charts=charts))
    if (grouped := _groups(rows, settings)) is not None:
        page.sections.append(grouped)
    return page


def _read(folder: Path) -> tuple[list[Row], list[str]]:
    """Returns the table's rows, and the settings that cells change."""
    listed = cells_of(folder)
    if not (folder / TABLE_FILE).exists():
        raise RunDirError(f"{folder}: no cell of the sweep has ended; there is nothing to report yet. The sweep's command goes on with it.")
    try:
        # Arrow may crash on damaged bytes; the table is small, and any start of the sweep writes it anew.
        with pa.OSFile(str(folder / TABLE_FILE)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    except (OSError, ValueError, KeyError, pa.ArrowInvalid) as error:
        raise RunDirError(
            f"{folder}: the sweep's table cannot be read ({error}). Run the sweep's command again: it writes sweep.arrow anew."
        ) from error
    keys = dict.fromkeys(key for cell in listed for key in cell["overrides"])
    return table.to_pylist(), [key for key in keys if key in table.schema.names]


def _cards(whole: Sequence[Row], done: Sequence[Row], settings: Sequence[str]) -> Iterator[Card]:
    yield Card("Cells complete", f"{len(done):,}", f"of {len(whole):,}")
    if (best := _best(done)) is not None:
        row, name, heading = best
        yield Card(f"Best {heading}", _number(row, name), ", ".join(_end(_text(row[key])) for key in settings))
    if quarantined := sum(row["quarantined"] or 0 for row in whole):
        yield Card("Errors", f"{quarantined:,}", "rows quarantined, of all cells")
    yield Card("Time", duration(sum(row["seconds"] or 0 for row in whole)), "of all cells, their last starts")


def _best(done: Sequence[Row]) -> tuple[Row, str, str] | None:
    if (main := _main(done)) is None:
        return None
    name, heading, more = main
    fit = [row for row in done if row.get(name) is not None]
    return (max if more else min)(fit, key=lambda row: row[name]), name, heading


def _main(done: Sequence[Row]) -> tuple[str, str, bool] | None:
    return next((each for each in _FIGURES if each[0] != "seconds" and any(row.get(each[0]) is not None for row in done)), None)


def _number(row: Row, name: str) -> str:
    return "" if row.get(name) is None else figure(row[name], row.get(f"{name}_stderr"))


# -------------------------------------------------------------------------------------------------------------- heat map


def _heat_map(rows: Sequence[Row], settings: Sequence[str]) -> Table:
    found = [each for each in _FIGURES if any(row.get(each[0]) is not None for row in rows)]
    shades = {name: shades_of([row.get(name) for row in rows], more) for name, _, more in found if name != "seconds"}
    cells = [
        [
            *(TableCell(_text(row[key])) for key in settings),
            TableCell("" if row["state"] == "complete" else row["state"]),
            *(_cell(row, name, shades[name][index] if name in shades else None) for name, _, _ in found),
        ]
        for index, row in enumerate(rows)
    ]
    headings = [*settings, "", *(heading for _, heading, _ in found)]
    if all(row["state"] == "complete" for row in rows):
        del headings[len(settings)]
        for line in cells:
            del line[len(settings)]
    return Table("", headings, cells, left=len(headings) - len(found))


def _cell(row: Row, name: str, shade: float | None) -> TableCell:
    return TableCell(_number(row, name), shade, shade == 1.0)


def shades_of(values: Sequence[float | None], more: bool) -> list[float | None]:
    """Returns 0 for the worst value to 1 for the best, by rank, so that one bad cell does not make the others look equal.

    None for a missing value, and for all where there are fewer than two different values.
    """
    ranks = sorted({value for value in values if value is not None}, reverse=not more)
    if len(ranks) < 2:
        return [None] * len(values)
    shade = {value: rank / (len(ranks) - 1) for rank, value in enumerate(ranks)}
    return [None if value is None else shade[value] for value in values]


def _text(value: object) -> str:
    """Returns a setting's value on one line."""
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------------------------------------------------------- curves


def _charts(done: Sequence[Row], settings: Sequence[str]) -> Iterator[Chart]:
    """Draws the main figure against bits, where models differ in them, and against each numeric setting."""
    if (main := _main(done)) is None:
        return
    name, heading, _ = main
    if "model.path" in settings:
        bits = [bits_of(str(row["model.path"])) for row in done]
        if len({each for each in bits if each is not None}) > 1:
            rest = [key for key in settings if key != "model.path"]
            yield _chart("bits", "bits of a weight", done, bits, name, heading, rest)
    for number, key in enumerate(settings):
        values = [row[key] if isinstance(row[key], int | float) and not isinstance(row[key], bool) else None for row in done]
        if len({value for value in values if value is not None}) > 1:
            yield _chart(f"setting-{number}", key, done, values, name, heading, [other for other in settings if other != key])


def _chart(slot: str, x: str, rows: Sequence[Row], values: Sequence[float | None], name: str, heading: str, rest: Sequence[str]) -> Chart:
    """Draws a line for each combination of the other settings; a single line where there are too many."""
    points: list[ChartPoint] = []
    for row, value in zip(rows, values, strict=True):
        if value is not None and row.get(name) is not None:
            error, series = row.get(f"{name}_stderr"), ", ".join(_end(_text(row[key])) for key in rest)
            ends = (None, None) if error is None else (row[name] - error, row[name] + error)
            points.append(ChartPoint(value, row[name], f"{x} {value:g}, {heading} {_number(row, name)}: {row['cell']}", series, *ends))
    points.sort(key=lambda point: point.x)
    words = "Bars: standard error." if any(point.low is not None for point in points) else ""
    if len({point.series for point in points}) > _SERIES:
        points = [ChartPoint(point.x, point.y, point.label, "", point.low, point.high) for point in points]
        words += " The other settings are not told apart."
    ticks = sorted({point.x for point in points})
    logarithmic = ticks[0] > 0 and ticks[-1] / ticks[0] >= 4
    spec = lines(points, x, heading, zero=False, logarithmic_x=logarithmic, ticks=ticks if len(ticks) <= 8 else (), legend=", ".join(rest))
    return Chart(slot, f"{heading} against {x}", words.strip(), spec)


def bits_of(model: str) -> int | None:
    """Returns the bits of a weight: from the config.json of a local model, else from its name (``…-4bit``); else None."""
    folder = files("mlx_bulk.configs") / "demo" if model == "demo" else Path(model).expanduser()
    file = folder / "config.json"
    if file.is_file():
        try:
            config = json.loads(file.read_bytes())
            quantization = config.get("quantization") or config.get("quantization_config") or {}
            return quantization.get("bits") or _DTYPES.get(config.get("torch_dtype") or config.get("dtype"))
        except (OSError, ValueError, AttributeError):
            return None
    named = re.search(r"(?<![\d.])(\d{1,2})[-_]?bits?\b|(?:\b|_)(?:fp|bf|f|float|bfloat)(16|32)\b", model.rpartition("/")[2], re.IGNORECASE)
    return None if named is None else int(named[1] or named[2])


def _end(text: str) -> str:
    return text if len(text) <= 28 else f"…{text[-27:]}"


# ---------------------------------------------------------------------------------------------------------------- groups


def _groups(rows: Sequence[Row], settings: Sequence[str]) -> PageSection | None:
    """Shows the main figure of each group, with a column for each cell; None where cells have no groups."""
    if (main := _main(rows)) is None or not any(row.get("of") == "group" for row in rows):
        return None
    name, heading, more = main
    cells = list(dict.fromkeys(row["cell"] for row in rows))[:12]
    values: dict[str | None, dict[str, Row]] = {}
    for row in rows:
        if row.get("of") == "group":
            values.setdefault(row["group"], {})[row["cell"]] = row
    lines_of: list[list[TableCell]] = []
    for group, of in list(values.items())[:30]:
        there = [of.get(cell, {}).get(name) for cell in cells]
        shades = shades_of(there, more) if any(value is not None for value in there) else [None] * len(there)
        cells_of = (_cell(of.get(cell, {}), name, shade) for cell, shade in zip(cells, shades, strict=True))
        lines_of.append([TableCell("(no value)" if group is None else group), *cells_of])
    labels = {row["cell"]: ", ".join(_end(_text(row[key])) for key in settings) for row in rows}
    shown = Table("", ["group", *(labels[cell] for cell in cells)], lines_of)
    return PageSection(
        "groups", "Groups", f"The {heading} of each group; in each row the best cell is the darkest and bold.", tables=[shown]
    )
