"""The text models inside of vision models that mlx-lm has no file for, as networks of mlx-lm: LLaVA, Idefics 3, SmolVLM and their like.

Checkpoints name a text model's weights in several ways; here they get one:

    transformers 4      language_model.model.layers.0 …     text_model's: model.text_model.layers.0 …, lm_head
    transformers 5      the same, or model.language_model.layers.0 …, lm_head
    mlx-vlm             language_model.model.layers.0 …, or language_model.layers.0 …
    here                language_model.model.layers.0 …, language_model.lm_head
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import BaseModelArgs
from mlx_lm.utils import _get_classes  # pyright: ignore[reportPrivateUsage] - what load_model itself takes

Config = dict[str, Any]
Weights = dict[str, mx.array]

OWN = ("llava", "pixtral", "idefics3", "smolvlm")  # mlx-lm has no file for them, or takes them for another model
PREFIXES = re.compile(r"(model\.)?(language_model|text_model)\.(model\.)?(?=\w)")
HEAD = "lm_head."


@dataclass
class VisionTextArguments(BaseModelArgs):
    """Settings of a vision model, of which the text's count."""

    model_type: str
    text_config: Config = field(default_factory=dict[str, Any])


class VisionText(nn.Module):
    """The text model of a vision model, as its child ``language_model``."""

    def __init__(self, args: VisionTextArguments):
        super().__init__()
        self.args, self.model_type = args, args.model_type
        network, settings = _get_classes(args.text_config)
        self.language_model: Any = network(settings.from_dict(args.text_config))
        if hasattr(self.language_model, "make_cache"):
            object.__setattr__(self, "make_cache", self.language_model.make_cache)

    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: mx.array | None = None) -> mx.array:
        """inputs [B, T] -> logits [B, T, V]."""
        if input_embeddings is None:
            return self.language_model(inputs, cache=cache)
        return self.language_model(inputs, cache=cache, input_embeddings=input_embeddings)

    @property
    def layers(self) -> Any:
        """Returns the decoder's layers."""
        return self.language_model.layers

    def sanitize(self, weights: Weights) -> Weights:
        """Returns the text's weights under the names of this network; leaves out the tower's."""
        own = text_weights(weights)
        if not any(name.startswith(HEAD) for name in own) and HEAD[:-1] in self.language_model:
            self.language_model.args.tie_word_embeddings = True
            self.language_model.pop(HEAD[:-1])
        if hasattr(self.language_model, "sanitize"):
            own = self.language_model.sanitize(own)
        return {f"language_model.{name}": array for name, array in own.items()}


def text_weights(weights: Weights) -> Weights:
    """Returns the text model's weights under mlx-lm's names: model.layers…, model.embed_tokens, lm_head."""
    own: Weights = {}
    for name, array in weights.items():
        bare = PREFIXES.sub("", name, count=1) if PREFIXES.match(name) else name
        if bare.startswith(HEAD):
            own[bare] = array
        elif bare != name:
            own[f"model.{bare}"] = array
    return own


def vision_text_classes(config: Config) -> tuple[Callable[[Any], Any], Any] | None:
    """Returns what makes the text's network of a vision model's config; None where mlx-lm has a file of its own for it."""
    text = config.get("text_config")
    if not isinstance(text, dict) or "vision_config" not in config or "model_type" not in text:
        return None
    if config.get("model_type") in OWN:
        return VisionText, VisionTextArguments
    try:
        _get_classes(config)
    except ValueError:
        return VisionText, VisionTextArguments
    return None
