"""Checkpoints of random weights in a real model's shape, with the embedded demo's tokenizer, and a setup to score them with."""

import json
import shutil
from pathlib import Path
from typing import Any

from mlx_bulk.kernels.backend import load_mlx

mx = load_mlx()

import mlx_bulk.configs  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_bulk.configs.schema import BatchConfig, ModelConfig  # noqa: E402
from mlx_bulk.runner.checkpoint import find  # noqa: E402
from mlx_bulk.runner.fitting import fit  # noqa: E402
from mlx_bulk.runner.model import load  # noqa: E402
from mlx_bulk.runner.prefill import Setup, Wanted  # noqa: E402
from mlx_bulk.runner.records import Scored, ScoreRequest  # noqa: E402
from mlx_bulk.runner.scorer import Scorer  # noqa: E402
from mlx_lm.models import llama  # noqa: E402

DEMO = Path(mlx_bulk.configs.__path__[0]) / "demo"

LLAMA_135M: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def save(folder: Path, shape: dict[str, Any]) -> None:
    """Writes a checkpoint that mlx-lm and transformers both load."""
    mx.random.seed(0)
    network = llama.Model(llama.ModelArgs.from_dict(shape))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)


def setup(folder: Path) -> Setup:
    """The project's own way of running the checkpoint, probes and all."""
    config = ModelConfig(path=str(folder))
    return fit(load(config, find(config), memory=1 << 40), BatchConfig(), Wanted(echo=True, greedy=True))[0]


def scored(setup: Setup, requests: list[ScoreRequest]) -> list[Scored]:
    """Outcomes in the order of the requests."""
    windows = iter([requests])
    outcomes = [outcome for outcome in Scorer(setup).run(lambda wait: next(windows, None)) if isinstance(outcome, Scored)]
    assert len(outcomes) == len(requests), "some rows failed"
    return sorted(outcomes, key=lambda outcome: outcome.row)
