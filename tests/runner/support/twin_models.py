"""Small models whose twins are tried, and the folder in which a test's verdicts on twins are remembered."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.runner.models.checkpoint import Checkpoint
from mlx_bulk.runner.models.loader import LanguageModel
from mlx_lm.models import llama

from . import tiny
from .released_configs import uncomputed

GEMMA = tiny.CONFIGS["gemma3_text"] | {"model_type": "gemma3_text", "sliding_window": 512}
LLAMA = tiny.CONFIGS["llama"] | {"model_type": "llama"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's twins are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mlx-bulk" / "twins"


def model_of(config: dict[str, Any], network: Any = None, **more: Any) -> LanguageModel:
    """A model of this config, whose weights are not computed unless ``network`` is given."""
    network = uncomputed(config) if network is None else network
    return LanguageModel(
        network, Checkpoint(Path("nowhere"), None, config), more.pop("vocabulary", config["vocab_size"]), "float32", 0, **more
    )


class Half(llama.Model):
    """Goes wrong in the precision that its weights come in."""

    def __call__(self, inputs: mx.array, *more: Any, **named: Any) -> mx.array:
        logits = super().__call__(inputs, *more, **named)
        return logits * (1 + inputs.shape[0]) if logits.dtype != mx.float32 else logits
