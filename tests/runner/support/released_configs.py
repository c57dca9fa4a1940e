"""Holds configs of the size of released models: the settings of their config.json that mlx-lm reads.

Networks of them are built without a parameter ever being computed.
"""

import json
from pathlib import Path
from typing import Any

Config = dict[str, Any]

CONFIGS: dict[str, Config] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def uncomputed(config: Config) -> Any:
    """A network of that size; its parameters are not there until they are asked for."""
    from mlx_lm.utils import _get_classes  # pyright: ignore[reportPrivateUsage]

    model, settings = _get_classes(config)
    return model(settings.from_dict(config))
