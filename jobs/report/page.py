"""Defines the parts of a page and renders them as one HTML file from the template in assets/.

Knows no run. All content is text: the template escapes it, and the JSON holds no character with a meaning in HTML.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .charts import Chart
from .svg import drawn

if TYPE_CHECKING:
    from markupsafe import Markup

# What the head of each page has in front of any text of a run, as the template says it.
_BEGIN, _MARK, _HEAD_BYTES = b"<!doctype html>", b'<meta name="generator" content="mlx-bulk ', 2048

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(slots=True, frozen=True)
class Card:
    """A figure at the head of the page."""

    heading: str
    value: str
    note: str = ""


@dataclass(slots=True, frozen=True)
class TableCell:
    """A cell of a table. shade: 0 to 1 in a heat map, None elsewhere. best: whether it is among the best cells."""

    text: str
    shade: float | None = None
    best: bool = False


@dataclass(slots=True, frozen=True)
class Table:
    """Rows below a heading; the first ``left`` columns are names, the others figures.

    prose: the columns of running text, whose lines may break anywhere; on a phone each row of such a table is stacked.
    """

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    left: int = 1
    words: str = ""
    prose: Sequence[int] = ()


@dataclass(slots=True, frozen=True)
class PageSection:
    """A part of the page. code: titles and texts that are folded until a reader opens them."""

    name: str
    title: str
    words: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    code: Sequence[tuple[str, str]] = ()


@dataclass(slots=True)
class Page:
    """A report. banner: facts to know before any figure. browser: the samples as the script reads them, None without samples."""

    title: str
    subtitle: str
    banner: list[str] = field(default_factory=list[str])
    cards: list[Card] = field(default_factory=list[Card])
    sections: list[PageSection] = field(default_factory=list[PageSection])
    browser: dict[str, Any] | None = None
    footer: str = ""


def table(
    title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, words: str = "", prose: Sequence[int] = ()
) -> Table:
    """Returns a table of plain text."""
    return Table(title, heading, [[TableCell(text) for text in row] for row in rows], left, words, prose)


def render_page(page: Page) -> bytes:
    """Renders the page in UTF-8, with lone surrogates as escapes. Raises BulkError where its charts cannot be drawn."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    beside = files(__package__ or "mlx_bulk.jobs.report") / "assets"
    template, style, script = ((beside / name).read_text(encoding="utf-8") for name in ("report.html.jinja", "report.css", "report.js"))
    charts = drawn([chart for section in page.sections for chart in section.charts])
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["breakable"] = _breakable
    text = environment.from_string(template).render(
        page=page,
        charts={name: Markup(svg) for name, svg in charts.items()},
        style=Markup(style),
        script=Markup(script),
        allowed=f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'",
        samples=None if page.browser is None else Markup(script_json(page.browser)),
        version=version("mlx-bulk"),
    )
    return text.encode("utf-8", "backslashreplace")


def is_page_file(path: Path) -> bool:
    """Returns True for a file that begins as each page does; False also where it is missing or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(_BEGIN) and _MARK in head.partition(b"<title>")[0]


def _breakable(text: str) -> "Markup":
    """Returns the text with a possible line break after each dot."""
    from markupsafe import Markup

    return Markup(".<wbr>").join(text.split("."))


def script_json(value: object) -> str:
    """Returns JSON for a script element: ASCII, without characters that begin or end anything in HTML."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text
