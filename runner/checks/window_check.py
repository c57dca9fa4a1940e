"""Tests whether a model has the sliding window that its config.json asks for. Without it, long rows get other logits.

Tried on two tiny twins with different windows: where a row longer than both gets the same logits, there is no window. Knows no names
of models.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..layers.kv_cache import make_caches
from ..models.config_compat import mlx_lm_settings
from ..twins.tiny_config import WINDOW, Config
from ..twins.tiny_twin import TEXT, twin
from .trial import random_ids, row_logits

SETTING = "sliding_window"


def missing_window(network: Any, config: Config) -> int | None:
    """Returns the sliding window, in tokens, that config.json asks for and ``network`` lacks; None where all is well.

    A model has its window if any of its layers looks no further back. Where no twin can be built, its caches decide.
    """
    text = config | (config.get(TEXT) or {})
    window = text.get(SETTING)
    if not isinstance(window, int) or text.get("use_sliding_window") is False:
        return None
    if any(hasattr(inner, "max_size") for cache in make_caches(network, 1, padded=False) for inner in getattr(cache, "caches", [cache])):
        return None
    try:
        near, far = (_last_logits(network, config, length) for length in (WINDOW // 2, WINDOW))
    except Exception:  # NoTwin, or whatever a model file fails with
        return window
    return window if np.array_equal(near, far) else None


def _last_logits(network: Any, config: Config, window: int) -> NDArray[np.float32]:
    """Returns a twin's logits [V] after a row that is longer than its ``window``."""
    changed = config | mlx_lm_settings(config)
    text = changed.get(TEXT)
    changed |= {TEXT: text | {SETTING: window}} if isinstance(text, dict) and SETTING in text else {SETTING: window}
    small = twin(network, changed)
    vocabulary = row_logits(small, np.zeros(1, np.int32)).shape[-1]
    (ids,) = random_ids(np.random.default_rng(5), vocabulary, [4 * WINDOW])
    return np.array(row_logits(small, ids)[-1].astype(mx.float32))
