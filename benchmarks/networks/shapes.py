"""Checkpoints of random weights in a real model's shape, with the embedded demo's tokenizer, and ours ready to run on them.

Importing it puts in the fast BLAS: the process of a peer that is to do without one must not.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_bulk.kernels.backend import load_mlx

mx = load_mlx()

import mlx_bulk.configs  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_bulk.configs.schema import BatchConfig, ModelConfig  # noqa: E402
from mlx_bulk.runner.checks.engine_setup import fit  # noqa: E402
from mlx_bulk.runner.core.logprob_options import LogprobOptions  # noqa: E402
from mlx_bulk.runner.core.outcomes import Generated, Scored  # noqa: E402
from mlx_bulk.runner.core.requests import Request, ScoreRequest  # noqa: E402
from mlx_bulk.runner.engine.engine import Engine  # noqa: E402
from mlx_bulk.runner.engine.setup import Setup  # noqa: E402
from mlx_bulk.runner.models.checkpoint import find_checkpoint  # noqa: E402
from mlx_bulk.runner.models.loader import load_model  # noqa: E402
from mlx_bulk.runner.scoring.scorer import Scorer  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_lm.utils import quantize_model  # noqa: E402

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

LLAMA_5M = LLAMA_135M | {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
}
TOY = LLAMA_135M | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 2048,
}
LLAMA_1B = LLAMA_135M | {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SHAPES = {"135m": LLAMA_135M, "1b": LLAMA_1B, "5m": LLAMA_5M, "toy": TOY}
MEMORY = 1 << 40  # bytes that ``setup`` loads a model into


def save(folder: Path, shape: dict[str, Any], bits: int | None = None, numbers: str = "bfloat16") -> int:
    """Writes a checkpoint that mlx-lm and transformers both load; the number of its parameters, the tied head's counted once.

    bits: its matrices are quantized as mlx-lm does, in groups of 64, with scales of float16. Then only mlx-lm loads it. numbers: the type
    that its weights are rounded to; they are stored as float32. Nearly all checkpoints hold bfloat16.
    """
    mx.random.seed(0)
    network: Any = llama.Model(llama.ModelArgs.from_dict(shape))
    network.set_dtype(getattr(mx, numbers))
    network.set_dtype(mx.float32)
    if bits is not None:
        network.set_dtype(mx.float16)
        network, shape = quantize_model(network, shape, 64, bits)
    weights: dict[str, Any] = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape))
    save_tokenizer(folder, shape["vocab_size"])
    return sum(array.size for array in weights.values())


def save_tokenizer(folder: Path, size: int) -> None:
    """Writes the demo's tokenizer with so many ids: each id that a random model draws is some text."""
    shutil.copy(DEMO / "tokenizer_config.json", folder)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for unused in range(len(vocabulary), size):
        vocabulary[f"\u0120w{unused}"] = unused
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def gflop(shape: dict[str, Any], tokens: int, keys: int, logits: int) -> float:
    """Of ``tokens`` that attend to ``keys`` keys in sum, and ``logits`` of which are read: matrix products alone, two a weight."""
    hidden, layers, heads = shape["hidden_size"], shape["num_hidden_layers"], shape["num_attention_heads"]
    weights = hidden * (2 * hidden + 2 * hidden // heads * shape["num_key_value_heads"] + 3 * shape["intermediate_size"])
    return 2e-9 * (layers * weights * tokens + 2 * layers * hidden * keys + hidden * shape["vocab_size"] * logits)


def setup(folder: Path, wanted: LogprobOptions = LogprobOptions(echo=True, greedy=True), rows: int | None = None) -> Setup:  # noqa: B008 - frozen
    """The project's own way of running the checkpoint, probes and all; by default to score. ``rows`` decode at once."""
    config = ModelConfig(path=str(folder))
    return fit(load_model(config, find_checkpoint(config), memory=MEMORY), BatchConfig(rows=rows or "auto"), wanted).setup


def generated(engine: Engine, requests: list[Request], each_step: Callable[[], bool] = lambda: False) -> list[Generated]:
    """Outcomes in the order of the requests and of their samples. ``each_step`` is called before each step; True stops."""
    windows = iter([requests])
    outcomes = [outcome for outcome in engine.run(lambda wait: next(windows, None), each_step) if isinstance(outcome, Generated)]
    assert len(outcomes) == sum(len(request.samples) for request in requests), "some rows failed"
    return sorted(outcomes, key=lambda outcome: (outcome.row, outcome.index))


def scored(scorer: Scorer, requests: list[ScoreRequest]) -> list[Scored]:
    """Outcomes in the order of the requests."""
    windows = iter([requests])
    outcomes = [outcome for outcome in scorer.run(lambda wait: next(windows, None)) if isinstance(outcome, Scored)]
    assert len(outcomes) == len(requests), "some rows failed"
    return sorted(outcomes, key=lambda outcome: outcome.row)
