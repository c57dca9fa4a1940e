"""How many numbers a hidden state has, by config.json alone."""

from typing import Any

from ..core.errors import ModelError
from ..encoders.registry import encoder_class


def hidden_size(config: dict[str, Any]) -> int:
    """Returns H. Raises ModelError where config.json does not say it."""
    if (encoder := encoder_class(config)) is not None:
        return encoder.hidden_size(config)
    text = config.get("text_config")
    values = config | (text if isinstance(text, dict) else {})
    for name in ("hidden_size", "n_embd", "d_model", "dim"):
        if isinstance(size := values.get(name), int) and size > 0:
            return size
    raise ModelError("config.json does not say hidden_size, the width of the model's states; fetch it anew")
