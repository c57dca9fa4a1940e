"""Two networks for ``decode_overlap.py`` with setups of the engine: one of Qwen3's layers in float32, one whose layers do nothing."""

from functools import cache
from typing import Any

from networks import random_models, shapes

from mlx import nn
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.engine.setup import BatchFeatures, Setup
from mlx_bulk.runner.scheduler.limits import Limits
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

mx = shapes.mx

LAYERS = 36
VOCABULARY = 2048  # the demo's tokenizer's
WIDTHS = {"hidden_size": 256, "num_hidden_layers": 12, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2}


class IdleLayer(nn.Module):
    """Gives back what it gets."""

    def __call__(self, x: Any, mask: Any = None, cache: Any = None) -> Any:
        """Looks at nothing."""
        return x


class IdleNetwork(nn.Module):
    """A token table, layers that do nothing, and the same table as the head. It is called as mlx-lm's networks are."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = [IdleLayer() for _ in range(LAYERS)]

    def __call__(self, inputs: Any, cache: Any = None) -> Any:
        """Logits [B, T, V] of ids [B, T]."""
        h = self.embed_tokens(inputs)
        for layer, own in zip(self.layers, cache or [None] * LAYERS, strict=True):
            h = layer(h, None, own)
        return self.embed_tokens.as_linear(h)


def idle_setup(small: bool) -> Setup:
    """Logprobs and the top 5 of 64 rows."""
    mx.random.seed(0)
    network = IdleNetwork(VOCABULARY, 16 if small else 256)
    mx.eval(network.parameters())
    limits = Limits(64, 2048, float("inf"), 1.0, 0.0)
    return Setup(network, VOCABULARY, limits, LogprobOptions(top=5), BatchFeatures(padded=True))


def layered_setup(small: bool) -> Setup:
    """A step of some milliseconds on one thread."""
    random_models.MODELS["overlap"] = random_models.MODELS["tiny"] | ({} if small else WIDTHS) | {"vocab_size": VOCABULARY}
    model = random_models.build(random_models.Variant("overlap"))
    model.network.set_dtype(mx.float32)
    mx.eval(model.network.parameters())
    return fit(model, BatchConfig(rows=16), LogprobOptions()).setup


@cache
def tokenizer() -> Tokenizer:
    """The demo's."""
    return load_tokenizer(shapes.DEMO, None, {}, False)
