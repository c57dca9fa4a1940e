"""A sliding window that a config asks for: whether a model has it is found by trying, whatever keeps it, caches or masks."""

import pytest
from mlx_bulk.runner.lacking_window import SETTING, lacking_window
from mlx_bulk.runner.twin import TEXT

from .configs import CONFIGS
from .entries import EVERY, config_of, entry

ASKING = [name for name in CONFIGS if isinstance((config_of(name) | (config_of(name).get(TEXT) or {})).get(SETTING), int)]
LACK = {"gemma2"}
SOME = ("deepseek_v41", "gemma2", "gemma3_text", "mistral3")


@pytest.mark.parametrize("name", ASKING if EVERY else SOME)
def test_only_a_model_without_the_window_lacks_it(name: str):
    config = config_of(name)
    window = (config | (config.get(TEXT) or {}))[SETTING]
    assert lacking_window(entry(name).model.network, config) == (window if name in LACK else None)
