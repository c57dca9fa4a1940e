"""docs/models.md names every architecture and every fault: it is written anew when mlx-lm has more of them, or fewer."""

import re

from .configs import CANNOT, CONFIGS
from .counterparts import DIFFERENT, NOT_LOADED
from .faults import FAULTS
from .table import DOCS, HEAD

CELL = "[^|]*"
ROW = re.compile(rf"\| ([\w-]+) \| (padded|joined|exact|alone) \| {CELL}\| {CELL}\| (?:apart|whole) \| {CELL}\| {CELL}\|")
ANEW = "write it anew: python -m tests.zoo.table"


def test_the_table_has_a_line_for_each_architecture():
    page = DOCS.read_text(encoding="utf-8")
    assert HEAD in page, ANEW
    assert [row[1] for row in ROW.finditer(page)] == sorted(CONFIGS, key=str.lower), ANEW


def test_the_page_names_what_does_not_run_and_what_is_wrong():
    page = DOCS.read_text(encoding="utf-8")
    assert all(f"- **{name}**: {reason}." in page for name, reason in CANNOT.items()), ANEW
    assert all(fault.what in page and fault.script.rstrip() in page for fault in FAULTS), ANEW
    assert all(f"- **{name}**: {why}" in page for listed in (DIFFERENT, NOT_LOADED) for name, (_, why) in listed.items()), ANEW
