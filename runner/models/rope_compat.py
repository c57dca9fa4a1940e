"""Rotary positions that mlx-lm computes in another way than the config asks: YaRN whose range of frequencies is not rounded."""

from math import log, pi
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.rope_utils import YarnRoPE

from ..core.arrays import Doubles


def keep_yarn_range(network: Any, settings: dict[str, Any]) -> None:
    """Gives a network's YaRN layers the frequencies that ``truncate: false`` asks for (GPT-OSS): mlx-lm always rounds their range.

    settings: the config with mlx-lm's names (see ``config_compat``). Changes nothing without that setting.
    """
    scaling = settings.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("truncate") is not False or "rope_theta" not in settings:
        return
    for _, layer in network.named_modules():
        if isinstance(layer, YarnRoPE):
            layer._freqs = mx.array(yarn_periods(layer.dims, float(settings["rope_theta"]), scaling).astype(np.float32))  # pyright: ignore[reportPrivateUsage]


def yarn_periods(dims: int, theta: float, scaling: dict[str, Any]) -> Doubles:
    """Returns positions per radian [dims / 2] of YaRN (Peng et al. 2023) without rounding, as transformers computes them.

    Frequencies between those that turn ``beta_fast`` and ``beta_slow`` times in the original context are mixed of both kinds.
    """
    original, factor = float(scaling["original_max_position_embeddings"]), float(scaling["factor"])

    def place(turns: float) -> float:
        return dims * log(original / (turns * 2 * pi)) / (2 * log(theta))

    low, high = max(place(float(scaling.get("beta_fast") or 32)), 0), min(place(float(scaling.get("beta_slow") or 1)), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / ((high - low) or 0.001), 0, 1)
    periods = theta ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    return 1 / (ramp / (factor * periods) + (1 - ramp) / periods)
