"""The page of clusters names a test or a program for each promise: all of them are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_check_of_a_cluster_leads_to_a_test_or_a_program():
    rows = (ROOT / "docs/cluster.md").read_text().partition("## How it is checked")[2].partition("\n## ")[0]
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", rows)
    programs = re.findall(r"`(benchmarks/\w+\.py)`", rows)
    assert len(tests) >= 15
    assert len(set(programs)) >= 5
    for path, name in tests:
        defined = {each.name for each in ast.parse((ROOT / path).read_text()).body if isinstance(each, ast.FunctionDef)}
        assert name in defined, f"docs/cluster.md names {path}::{name}"
    assert [path for path in programs if not (ROOT / path).is_file()] == []
