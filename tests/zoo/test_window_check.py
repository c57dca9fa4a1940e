"""Tests how a sliding window is found: by trying, whether caches or masks implement it."""

import pytest
from mlx_bulk.runner.checks.window_check import SETTING, missing_window
from mlx_bulk.runner.twins.tiny_twin import TEXT

from .configs import CONFIGS
from .entries import EVERY, config_of, entry, parameters

ASKING = [name for name in CONFIGS if isinstance((config_of(name) | (config_of(name).get(TEXT) or {})).get(SETTING), int)]
SOME = ("deepseek_v41", "gemma3_text", "mistral3")


@pytest.mark.parametrize("name", parameters(ASKING if EVERY else SOME, slow=("deepseek_v41",)))
def test_a_model_has_the_window_that_its_config_asks_for(name: str):
    assert missing_window(entry(name).model.network, config_of(name)) is None


@pytest.mark.parametrize("name", ["gemma2", "llama"])
def test_a_model_file_that_reads_no_window_lacks_it(name: str):
    config = config_of(name)
    assert missing_window(entry(name).model.network, config) is None
    assert missing_window(entry(name).model.network, config | {SETTING: 8}) == 8
    assert missing_window(entry(name).model.network, config | {SETTING: 8, "use_sliding_window": False}) is None
