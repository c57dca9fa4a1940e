"""Tests that each architecture of which docs/models.md says so decodes on quantized keys and values in batches of ours.

By default a core of them is tried; MLX_BULK_ZOO=1 tries all.
"""

import re
from typing import Any

import pytest

from .entries import NAMES, parameters
from .kv_quantization import refused_here
from .table import DOCS

pytestmark = pytest.mark.compiles

LINE = re.compile(r"^\| (\S+) \| (padded|joined|exact|alone) \|.*\| (?:all layers|\d+ of \d+ caches|here alone) \|", re.MULTILINE)
WAYS: dict[str, Any] = dict(LINE.findall(DOCS.read_text(encoding="utf-8")))


def test_many_are_listed():
    assert len(WAYS) > 80


@pytest.mark.parametrize(("bits", "start"), [(8, 0), (8, 3), (4, 0)])
@pytest.mark.parametrize("name", parameters(sorted(WAYS.keys() & set(NAMES))))
def test_batches_of_ours_take_what_the_page_says(name: str, bits: int, start: int):
    assert refused_here(name, WAYS[name], start, bits) == ""
