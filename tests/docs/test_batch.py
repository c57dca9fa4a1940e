"""Tests that the page on Batch files names the fields that count, are ignored and are refused, endpoint by endpoint."""

import re

import pytest
from mlx_bulk.jobs.openai.endpoints import CHAT, COMPLETIONS, ENDPOINTS, RESPONSES

from .pages import ROOT

COLUMNS = {CHAT: 1, COMPLETIONS: 2, RESPONSES: 3}


def cells() -> list[list[str]]:
    text = (ROOT / "docs" / "batch.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| **")]
    assert [len(row) for row in rows] == [4, 4, 4, 4]
    return rows


@pytest.mark.parametrize("url", [CHAT, RESPONSES])
def test_the_table_names_each_field(url: str):
    count, vllm, ignored, refused = (set(re.findall(r"[a-z_.]*[a-z]", row[COLUMNS[url]])) for row in cells())
    endpoint = ENDPOINTS[url]
    inner = {"text": {"text.format"}, "reasoning": {"reasoning.effort"}, "add_generation_prompt": set[str]()}
    named = {name: inner.get(name, {name}) for name in endpoint.honoured}
    assert [name for name, words in named.items() if not words <= count | vllm] == []
    assert endpoint.ignored - {"reasoning.generate_summary"} <= ignored
    assert endpoint.refused.keys() <= refused


def test_what_is_ignored_of_completions():
    _, _, ignored, _ = (set(re.findall(r"[a-z_.]*[a-z]", row[COLUMNS[COMPLETIONS]])) for row in cells())
    assert ENDPOINTS[COMPLETIONS].ignored <= ignored
