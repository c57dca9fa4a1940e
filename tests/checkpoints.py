"""Tiny checkpoints on disk, as a user would have them: a random model of two layers with the embedded demo's tokenizer.

Their weights never change, so what they say can be asserted on; the demo model's own may be trained anew.
"""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_bulk.configs
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import LanguageModel, load_model
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load as mlx_lm_load
from mlx_lm.utils import quantize_model, save_config
from numpy.typing import NDArray

DEMO = Path(mlx_bulk.configs.__path__[0]) / "demo"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
BOS, EOS = 0, 2
VOCABULARY = 2048
CONTEXT = 96
PLENTY = 1 << 40  # bytes
IDS = list(range(5, 45))

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def write_checkpoint(folder: Path, config: dict[str, Any] = LLAMA) -> Path:
    """Writes a model with random weights, the same each time, and the demo's tokenizer into ``folder``."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(0)
    network = module.Model(module.ModelArgs.from_dict(config))
    # Larger weights than an initialisation gives: logprobs then spread, and greedy text does not settle at once.
    network.update(tree_map_with_path(lambda _, w: w * 2.5 if w.ndim == 2 else w, network.parameters()))
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    copy_tokenizer(folder)
    return folder


def write_quantized(folder: Path, bits: int = 4, dtype: mx.Dtype = mx.float16) -> Path:
    """Writes the checkpoint as ``mlx_lm.convert -q`` does."""
    write_checkpoint(folder)
    network, _ = mlx_lm_load(str(folder))[:2]
    network.set_dtype(dtype)
    network, config = quantize_model(network, json.loads((folder / "config.json").read_text()), group_size=32, bits=bits)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), {"format": "mlx"})
    save_config(config, folder / "config.json")
    return folder


def copy_tokenizer(folder: Path) -> None:
    """Puts the demo's byte-level tokenizer, its chat template and a generation config with two EOS ids into ``folder``."""
    for name in TOKENIZER:
        shutil.copy(DEMO / name, folder / name)
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": BOS, "eos_token_id": [EOS, BOS]}))


def write_adapter(checkpoint: Path, folder: Path, kind: str) -> Path:
    """A LoRA or DoRA adapter with random weights, as ``mlx_lm.lora`` saves one."""
    folder.mkdir()
    network = mlx_lm_load(str(checkpoint))[0]
    parameters = {"rank": 4, "scale": 8.0, "dropout": 0.0}
    network.freeze()
    linear_to_lora_layers(network, 2, parameters, use_dora=kind == "dora")
    mx.random.seed(1)
    leaves: Any = tree_flatten(network.trainable_parameters())
    # lora_b starts at zero, where an adapter changes nothing; DoRA's magnitude m is part of the adapter.
    weights = {name: array * 1.5 if name.endswith(".m") else 0.1 * mx.random.normal(array.shape) for name, array in leaves}
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    config = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def loaded(path: Path, memory: int = PLENTY, **settings: Any) -> LanguageModel:
    """A checkpoint as the runner loads it, in ``memory`` bytes."""
    config = ModelConfig(path=str(path), **settings)
    return load_model(config, find_checkpoint(config), memory)


def logprobs(network: Any, ids: list[int] = IDS) -> NDArray[np.float32]:
    """Logprobs [T, V] of a full forward."""
    logits = network(mx.array([ids]))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
