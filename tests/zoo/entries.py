"""Holds an architecture of the zoo as a run has it: built, saved, loaded and fitted to this device, each once.

Knows which of them are tried by default, and where an architecture differs from all others for a reason.
"""

import functools
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import BatchConfig, ModelConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import LanguageModel, load_model

from . import networks
from .configs import CONFIGS, Config
from .ropes import VARIANTS
from .trial import Alone

# Each kind of layer and of cache, and each fault of mlx-lm's in a padded batch: what is tried when nothing else is asked for.
CORE = (
    "llama",
    "gemma2",
    "gpt_bigcode",
    "nemotron-nas",
    "qwen3_moe",
    "deepseek_v3",
    "deepseek_v32",
    "minimax_m3_vl",
    "gemma3_text",
    "gemma3n",
    "gpt_oss",
    "llama4",
    "baichuan_m1",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "mamba2",
    "nemotron_h",
    "qwen3_next",
    "rwkv7",
)
EVERY = os.environ.get("MLX_BULK_ZOO") == "1"
NAMES = tuple(CONFIGS) if EVERY else CORE
QUANTIZED = NAMES if EVERY else ("llama", "gpt_oss", "deepseek_v3", "qwen3_next", "mamba2")

# Those of which decoding gives other logprobs than one call of the same tokens, in mlx-lm itself.
DECODES_OTHERWISE = {
    "phi3small": "a call's sparse blocks are cut from its end, not from the row's start",
    "plamo3": "its caches keep one token less than its mask shows within a call",
}
# What mlx-lm's loader makes something else of.
CHANGED_BY_LOADING = {"baichuan_m1": "its head is normalised"}
# What mlx-lm cannot quantize.
NOT_QUANTIZED = {
    "afm7": "FusedLinear.to_quantized lacks the argument `mode`",
    "llama4_text": "its head is a product with the embedding's packed weights",
    "prism_hadamard_qwen35": "its weights are of two bits, or it is none",
}
# Whole keys, windows, experts, sinks, and two kinds of states; the others of the core are slow.
QUICK = ("llama", "gemma3_text", "qwen3_moe", "gpt_oss", "lfm2", "mamba2")
SLOW = tuple(name for name in CORE if name not in QUICK)
PLENTY = 1 << 40  # bytes


@dataclass(slots=True)
class Entry:
    """A loaded architecture, how it is run, what was said of that, and what it says of each row alone."""

    model: LanguageModel
    setup: Setup
    about: dict[str, Any]
    alone: Alone


def parameters(names: Iterable[str], slow: tuple[str, ...] = SLOW) -> list[Any]:
    """Returns the names for a test, where some are marked slow unless all are asked for."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow and not EVERY else name for name in names]


def config_of(name: str) -> Config:
    """The tiny configuration of an architecture, or of a variant of one."""
    return CONFIGS[name] if name in CONFIGS else VARIANTS[name]


@functools.cache
def checkpoint(name: str, bits: int | None = None) -> Path:
    """A checkpoint of the architecture, its weights of so many bits."""
    config = config_of(name)
    network = networks.build(name.split()[0], config)
    if bits is not None:
        network, config = networks.quantized(network, config, bits)
    return networks.save(network, config, Path(tempfile.mkdtemp()) / name)


def loaded(folder: Path, memory: int = PLENTY) -> LanguageModel:
    """A checkpoint as the runner loads it; weights of few bits stay so where ``memory`` does not hold them otherwise."""
    config = ModelConfig(path=str(folder))
    return load_model(config, find_checkpoint(config), memory)


@functools.cache
def entry(name: str, bits: int | None = None) -> Entry:
    """An architecture, its weights of ``bits`` bits where that is not None."""
    model = loaded(checkpoint(name, bits), PLENTY if bits is None else 0)
    fitted = fit(model, BatchConfig(), LogprobOptions(echo=True))
    setup, about = fitted.setup, fitted.about
    return Entry(model, setup, about["probe"], Alone(model.network))
