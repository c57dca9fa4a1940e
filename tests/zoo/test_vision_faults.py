"""Tests that each fault of mlx-vlm that we work around is still there: the script beside it fails. A newer mlx-vlm shortens the list."""

from typing import Any

import pytest

from .tile_faults import TILE_FAULTS
from .vision_faults import PRELUDE, VISION_FAULTS, VisionFault, in_a_batch, saved_by

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("fault", VISION_FAULTS + TILE_FAULTS, ids=lambda fault: fault.name)
def test_its_script_shows_the_fault(fault: VisionFault):
    scope: dict[str, Any] = {}
    exec(PRELUDE, scope)
    with pytest.raises(AssertionError) as caught:
        exec(fault.script, scope)
    assert not str(caught.value)


@pytest.mark.parametrize("tokens", [(6, 6), (0, 6)])
def test_the_script_of_batches_finds_nothing_in_a_right_model(tokens: tuple[int, ...]):
    exec(PRELUDE + in_a_batch("qwen2_5_vl", *tokens), {})


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava"])
def test_what_transformers_4_saved_loads(name: str):
    exec(PRELUDE + saved_by(4, name), {})
