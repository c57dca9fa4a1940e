"""Tests docs/models.md: its lines are the zoo's findings, its totals add up, and no architecture or fault is missing."""

import re
from collections import Counter

import pytest
from mlx_bulk.runner.checks.padding_probe import WAYS

from ..runner.support.naive_truth import ECHO_TOLERANCE
from .configs import CANNOT, CONFIGS
from .counterparts import COUNTERPARTS, DIFFERENT, NOT_LOADED
from .entries import NAMES, entry, parameters
from .faults import FAULTS
from .table import DOCS, HEAD

pytestmark = pytest.mark.compiles

CELL = r"([^|]*?)"
ROW = re.compile(rf"\| ([\w-]+) \| (padded|joined|exact|alone) \| {CELL} \| {CELL} \| (apart|whole) \| {CELL} \| {CELL} \|")
PAGE = DOCS.read_text(encoding="utf-8")
ROWS = {row[1]: row for row in ROW.finditer(PAGE)}
ANEW = "write it anew: MLX_BULK_CPU=generic python -m tests.zoo.table"


def test_the_table_has_a_line_for_each_architecture():
    assert HEAD in PAGE, ANEW
    assert list(ROWS) == sorted(CONFIGS, key=str.lower), ANEW


@pytest.mark.parametrize("name", parameters(NAMES))
def test_an_architecture_runs_as_its_line_says(name: str):
    """One that falls to a slower way, by a change of ours or of mlx-lm's, is noticed here. The CPU's kernels may allow a faster one."""
    found, row = entry(name), ROWS[name]
    way = found.about["way"]
    faster = bool(found.model.substitutes) and WAYS.index(way) < WAYS.index(row[2])
    assert (row[2] if faster else way, "whole" if found.setup.head is None else "apart") == (row[2], row[5]), found.about["reason"]
    assert (row[4] == "") == (row[2] == "padded")


def test_differences_are_within_what_is_allowed():
    assert all(float(row[3]) <= ECHO_TOLERANCE for row in ROWS.values()), ANEW
    assert all(row[4] in ("", "crash") or float(row[4]) > ECHO_TOLERANCE for row in ROWS.values()), ANEW
    assert {name for name, row in ROWS.items() if row[7]} == COUNTERPARTS.keys(), ANEW


def test_the_totals_are_those_of_the_lines():
    ways = Counter(row[2] for row in ROWS.values())
    compared = [float(row[7]) for row in ROWS.values() if row[7]]
    said = (
        f"**{len(ROWS)} of {len(ROWS) + len(CANNOT)}** architectures run: {ways['padded']} padded, {ways['joined']} joined, "
        f"{ways['exact']} exact, {ways['alone']} alone. The worst Δ is "
    )
    assert said in PAGE, ANEW
    worst = re.search(r"The worst Δ is (\S+) \(([\w-]+); .* (\d+) are compared .* the worst Δ there is (\S+)\.\n", PAGE)
    assert worst is not None, ANEW
    assert f"{float(worst[1]):.0e}" == ROWS[worst[2]][3] == f"{max(float(row[3]) for row in ROWS.values()):.0e}", ANEW
    assert (int(worst[3]), f"{float(worst[4]):.0e}") == (len(compared), f"{max(compared):.0e}"), ANEW


def test_the_page_names_what_does_not_run_and_what_is_wrong():
    assert all(f"- **{name}**: {reason}." in PAGE for name, reason in CANNOT.items()), ANEW
    assert all(f"{fault.what}. Here: {fault.done}." in PAGE and fault.script.rstrip() in PAGE for fault in FAULTS), ANEW
    assert all(f"- **{name}**: {why}" in PAGE for listed in (DIFFERENT, NOT_LOADED) for name, (_, why) in listed.items()), ANEW
