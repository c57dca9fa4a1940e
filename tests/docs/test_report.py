"""Tests the page on reports: its picture exists and is small. test_pages.py runs its commands."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_is_there_and_small():
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (DOCS / "report.md").read_text(encoding="utf-8"))
    content = (DOCS / picture).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 300_000
