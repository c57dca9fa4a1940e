"""Adapters and weights as a trainer writes them, with random numbers that move logits: for runs whose policy changes."""

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_bulk.runner.policies.policy_source import DONE
from mlx_lm.tuner.utils import linear_to_lora_layers


def write_adapter(
    folder: Path,
    network: Any,
    kind: str = "lora",
    rank: int = 4,
    layers: int = 2,
    seed: int = 1,
    keys: tuple[str, ...] = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"),
    done: bool = True,
) -> Path:
    """An adapter for ``network``, which stays as it is; its B is not 0 as a trainer's first is."""
    twin = copy.deepcopy(network)
    parameters = {"rank": rank, "scale": 2.0, "dropout": 0.1, "keys": list(keys)}
    mx.random.seed(seed)
    linear_to_lora_layers(twin, layers, parameters, use_dora=kind == "dora")
    leaves = dict(tree_flatten(twin.parameters()))
    tensors = {name: value for name, value in leaves.items() if name.rsplit(".", 1)[-1] in ("lora_a", "lora_b", "m")}
    for name, value in tensors.items():
        if name.endswith("lora_b"):
            tensors[name] = mx.random.normal(value.shape) * 0.3
        if name.endswith(".m"):
            tensors[name] = value * (1 + 0.2 * mx.random.uniform(shape=value.shape))
    settings = {"fine_tune_type": kind, "num_layers": layers, "lora_parameters": parameters}
    return save_adapter(folder, settings, tensors, done)


def write_full(folder: Path, network: Any, seed: int = 1, done: bool = True) -> Path:
    """Full weights in mlx-lm's adapter format: the network's own, a little moved."""
    mx.random.seed(seed)
    moved = tree_map_with_path(lambda name, w: w + 0.05 * mx.random.normal(w.shape) if "proj" in name else w, network.parameters())
    return save_adapter(folder, {"fine_tune_type": "full", "num_layers": 0}, dict(tree_flatten(moved)), done)


def save_adapter(folder: Path, settings: dict[str, Any], tensors: dict[str, mx.array], done: bool = True) -> Path:
    """Writes what a trainer writes, the marker last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)
    if done:
        (folder / DONE).touch()
    return folder
