"""Draws charts as SVG by Vega-Lite (vl-convert), in a process of its own, so that its memory and crashes do not touch the run.

Knows specifications, and nothing of their content.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from ...configs.errors import BulkError
from .charts import Chart

SECONDS = 60.0  # a page has a dozen charts, each a tenth of a second

# stdin: name -> specification; stdout: name -> SVG. No package of ours is imported there.
_DRAW = "import json, sys, vl_convert as v; json.dump({n: v.vegalite_to_svg(s) for n, s in json.load(sys.stdin).items()}, sys.stdout)"
_NAMED = re.compile(r'(?<=\bid=")|(?<=url\(#)|(?<=href="#)')


def drawn(charts: Sequence[Chart]) -> dict[str, str]:
    """Returns the charts by name as SVG elements. Their ids differ, so that all may be in one page.

    Raises BulkError where they cannot be drawn.
    """
    if not charts:
        return {}
    specs = json.dumps({chart.name: chart.spec for chart in charts})
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _DRAW], input=specs, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BulkError(f"the charts were not drawn within {SECONDS:.0f} s: the machine may be busy; try again") from error
    if "No module named 'vl_convert'" in done.stderr:
        raise BulkError("charts need vl-convert-python, which is not installed: pip install vl-convert-python")
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise BulkError(f"the charts could not be drawn (exit code {done.returncode}): {last or 'no message'}")
    return {name: _own(svg, name) for name, svg in json.loads(done.stdout).items()}


def _own(svg: str, name: str) -> str:
    """Returns the SVG with ids that no other chart has, and without its size, which the page sets."""
    head, bracket, rest = _NAMED.sub(f"{name}-", svg).partition(">")
    return re.sub(r' (?:width|height|version|class|xmlns:xlink)="[^"]*"', "", head) + bracket + rest
