"""Builds charts as Vega-Lite specifications. Colours are names of the page's CSS variables, so that one drawing
fits light and dark screens and paper.

Knows numbers and headings; svg.py draws.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..report_data.bins import Bar, Histogram

Spec = dict[str, Any]

WIDTH, HEIGHT = 450, 170  # pixels: of the whole chart, and of what lies between its axes
COLOURS = [f"var(--c{number})" for number in range(1, 7)]
_COUNTS = {"tickCount": 4, "tickMinStep": 1}
_FONT = "system-ui, sans-serif"
_AXIS = {
    "labelColor": "var(--soft)",
    "titleColor": "var(--soft)",
    "gridColor": "var(--line)",
    "domainColor": "var(--edge)",
    "tickColor": "var(--edge)",
    "labelFont": _FONT,
    "titleFont": _FONT,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "labelOverlap": True,
    "tickCount": 6,
}
_LEGEND = {
    "orient": "top",
    "columns": 3,
    "columnPadding": 14,
    "symbolOpacity": 1,
    "labelFont": _FONT,
    "labelFontSize": 12,
    "labelColor": "var(--soft)",
    "labelLimit": 380,
    "titleFont": _FONT,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "titleColor": "var(--soft)",
}
_CONFIG = {
    "background": None,
    "autosize": {"type": "fit-x", "contains": "padding"},
    "view": {"stroke": None},
    "axis": _AXIS,
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "titlePadding": 10},
    "legend": _LEGEND,
    "range": {"category": COLOURS},
    "padding": 4,
}


@dataclass(slots=True, frozen=True)
class Chart:
    """A chart's heading, its message in words, and its specification."""

    name: str
    title: str
    words: str
    spec: Spec


@dataclass(slots=True, frozen=True)
class ChartPoint:
    """A point of a line. ``series`` names the line, ``label`` describes the point. low, high: the ends of an error bar."""

    x: float
    y: float
    label: str
    series: str = ""
    low: float | None = None
    high: float | None = None


def histogram_chart(found: Histogram, x: str, y: str, *, logarithmic: bool = False, limit: float | None = None) -> Spec:
    """Draws bars over their ranges or about their values. logarithmic: bins hold the natural logarithm of the shown values.

    limit: the end of the x axis. Integers and counts are labelled at integers only.
    """
    of = math.exp if logarithmic else float
    values = [
        {
            "a": of(bar.start),
            "b": of(bar.end) if limit is None else min(of(bar.end), limit),
            "n": bar.count,
            "z": 0,
            "t": f"{_range(bar, of)}: {bar.count:,} {y}",
        }
        for bar in found.bars
    ]
    scale: Spec = {"zero": False, "nice": False}
    axis: Spec = {"title": x, **({"tickMinStep": 1} if found.whole else {})}
    if logarithmic:
        scale, axis = {"type": "log", "nice": False}, axis | _log_axis()
    if each := [of(bar.value) for bar in found.bars if bar.value is not None]:
        axis = {"title": x, "values": each, "format": ",.4~g"}
        scale |= {"domain": _about(found.bars, of)}
    encoding: Spec = {
        "x": {"field": "a", "type": "quantitative", "scale": scale, "axis": axis},
        "x2": {"field": "b"},
        "y": {"field": "n", "type": "quantitative", "axis": {"title": y, **_COUNTS, **_numbers(bar.count for bar in found.bars)}},
        "y2": {"field": "z"},
        "description": {"field": "t", "type": "nominal"},
    }
    return _spec(values, {"type": "rect", "color": COLOURS[0], "stroke": "var(--panel)", "strokeWidth": 1}, encoding)


def bars(counts: Sequence[tuple[str, int]], x: str) -> Spec:
    """Draws a horizontal bar for each name, in the order of ``counts``."""
    values = [{"k": name, "n": count, "t": f"{name}: {count:,} {x}"} for name, count in counts]
    encoding: Spec = {
        "y": {"field": "k", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 150, "labelPadding": 6}},
        "x": {
            "field": "n",
            "type": "quantitative",
            "axis": {"title": x, "grid": True, "tickMinStep": 1, **_numbers(count for _, count in counts)},
        },
        "description": {"field": "t", "type": "nominal"},
    }
    return {**_spec(values, {"type": "bar", "color": COLOURS[0]}, encoding), "height": {"step": 30}}


def lines(
    points: Sequence[ChartPoint],
    x: str,
    y: str,
    *,
    zero: bool = True,
    zero_x: bool = False,
    logarithmic_x: bool = False,
    ticks: Sequence[float] = (),
    whole_x: bool = False,
    legend: str | None = None,
) -> Spec:
    """Draws lines through points, with error bars where points have them. zero, zero_x: the axis begins at 0.

    ticks: the labels of the x axis. whole_x: it holds integers. legend: the title of the lines' legend.
    """
    values = [
        {"x": point.x, "y": point.y, "s": point.series, "t": point.label, "l": point.low, "h": point.high}
        for point in points
        if math.isfinite(point.y)
    ]
    axis: Spec = {"title": x, **({"values": list(ticks), "format": ",~r"} if ticks else _numbers(point.x for point in points))}
    axis |= {"tickMinStep": 1} if whole_x else {}
    scale: Spec = {"zero": zero_x, "nice": False, **({"padding": 14} if ticks else {}), **({"type": "log"} if logarithmic_x else {})}
    encoding: Spec = {
        "x": {"field": "x", "type": "quantitative", "scale": scale, "axis": axis},
        "y": {
            "field": "y",
            "type": "quantitative",
            "scale": {"zero": zero},
            "axis": {"title": y, "tickCount": 4, **_numbers(point.y for point in points)},
        },
    }
    colour: Spec = {"color": {"value": COLOURS[0]}}
    if len({point.series for point in points}) > 1:
        colour = {
            "color": {"field": "s", "type": "nominal", "sort": None, "legend": {**_LEGEND, "title": legend, "columns": _columns(points)}}
        }
    marks: list[Spec] = [{"mark": {"type": "line", "strokeWidth": 2, "aria": False}, "encoding": colour}]
    if any(point.low is not None for point in points):
        marks.append(
            {
                "mark": {"type": "rule", "aria": False},
                "encoding": {**colour, "y": {"field": "l", "type": "quantitative"}, "y2": {"field": "h"}},
            }
        )
    size = 45 if len(values) <= 40 else 8
    marks.append(
        {"mark": {"type": "point", "filled": True, "size": size}, "encoding": {**colour, "description": {"field": "t", "type": "nominal"}}}
    )
    return {**_spec(values, None, encoding), "layer": marks}


def scatter(points: Sequence[ChartPoint], x: str, y: str) -> Spec:
    """Draws points and the diagonal on which x and y are equal."""
    low = min((min(point.x, point.y) for point in points), default=0.0)
    high = max((max(point.x, point.y) for point in points), default=1.0)
    values = [{"x": point.x, "y": point.y, "t": point.label} for point in points]
    scale: Spec = {"domain": [low, high], "nice": True, "zero": False}
    axis: Spec = {"tickCount": 5, "format": "~g"}
    encoding: Spec = {
        "x": {"field": "x", "type": "quantitative", "scale": scale, "axis": {"title": x, **axis}},
        "y": {"field": "y", "type": "quantitative", "scale": scale, "axis": {"title": y, **axis}},
    }
    ends = [{"x": low, "y": low}, {"x": high, "y": high}]
    diagonal: Spec = {"data": {"values": ends}, "mark": {"type": "line", "color": "var(--edge)", "strokeDash": [4, 4], "aria": False}}
    dots: Spec = {
        "mark": {"type": "point", "filled": True, "size": 22, "color": COLOURS[0], "opacity": 0.55},
        "encoding": {"description": {"field": "t", "type": "nominal"}},
    }
    return {**_spec(values, None, encoding), "layer": [diagonal, dots], "height": 260}


def _spec(values: list[Spec], mark: Spec | None, encoding: Spec) -> Spec:
    drawn: Spec = {"width": WIDTH, "height": HEIGHT, "data": {"values": values}, "encoding": encoding, "config": _CONFIG}
    return drawn if mark is None else drawn | {"mark": mark}


def _numbers(values: Iterable[float]) -> Spec:
    """Returns an axis' number format: thousands and millions for large values, else plain numbers."""
    if max(map(abs, values), default=0.0) < 1e4:
        return {"format": ",~r"}
    return {"format": "~s", "labelExpr": "datum.value == 0 ? '0' : datum.label"}


def _log_axis() -> Spec:
    """Labels a logarithmic axis at 1, 2 and 5 of each power of ten only."""
    leading = "datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))"
    return {"format": "~s", "tickCount": 10, "labelExpr": f"indexof([1, 2, 5], round({leading} * 1000) / 1000) >= 0 ? datum.label : ''"}


def _columns(points: Sequence[ChartPoint]) -> int:
    """Returns how many names of lines fit beside each other; a letter is about 7 pixels wide."""
    return max(1, WIDTH // (54 + 7 * max(len(point.series) for point in points)))


def _about(bars: Sequence[Bar], of: Callable[[float], float]) -> list[float]:
    """Returns the x axis' ends for bars of single values: close to the bars; one unit on both sides of a single bar."""
    if len(bars) == 1:
        value = bars[0].value or 0.0
        return [of(value - 1), of(value + 1)]
    width = bars[0].end - bars[0].start
    return [of(bars[0].start - width / 3), of(bars[-1].end + width / 3)]


def _range(bar: Bar, of: Callable[[float], float]) -> str:
    return f"{_short(of(bar.start))} to {_short(of(bar.end))}" if bar.value is None else _short(of(bar.value))


def _short(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
