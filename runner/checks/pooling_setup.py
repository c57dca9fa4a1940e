"""Makes the engine setup of a pooling model: how many rows and tokens share a batch, and what a session notes of it."""

import logging
import platform
from importlib.metadata import version
from typing import Any

from ...configs.schema import BatchConfig
from ...kernels import backend
from ..core.logprob_options import LogprobOptions
from ..engine.setup import BatchFeatures, Setup
from ..models.loader import LanguageModel
from ..scheduler.limits import Limits

log = logging.getLogger("mlx_bulk")

ROWS = 256  # texts at once, when batch.rows is auto
TOKENS = {"cpu": 4096, "metal": 16384, "cuda": 65536}  # in one call, when batch.tokens is auto


def pooling_setup(model: LanguageModel, config: BatchConfig) -> Setup:
    """Returns the setup with which a pooling model runs."""
    rows = ROWS if config.rows == "auto" else config.rows
    tokens = TOKENS[backend.device_name()] if config.tokens == "auto" else config.tokens
    limits = Limits(rows, tokens, float("inf"), 0.0, 0.0)
    features = BatchFeatures(padded=True, right_padded=True)
    return Setup(model.network, model.vocabulary, limits, LogprobOptions(), features, static=config.deterministic)


def pooling_note(model: LanguageModel, config: BatchConfig, limits: Limits) -> dict[str, Any]:
    """Returns a session's line: what the vectors may depend on beyond the run's identity."""
    return {
        "versions": {name: version(name) for name in ("mlx", "mlx-lm", "transformers", "pyarrow", "numpy")},
        "host": platform.node(),
        "platform": platform.platform(),
        "device": backend.device_name(),
        "blas": str(backend.prepare()),
        "batch": {**config.model_dump(mode="json"), "rows": limits.rows, "tokens": limits.tokens},
        "model": str(model.checkpoint.folder),
        "dtype": model.dtype,
        "quantized": model.quantized,
        "substitutes": list(model.substitutes),
    }
