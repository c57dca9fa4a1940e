"""Puts sentence-transformers' files beside a tiny checkpoint, as its versions 2 and 6 write them."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

Settings = dict[str, Any]

NEW_NAMES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dropout": "sentence_transformers.sentence_transformer.modules.dropout.Dropout",
    "LogitScore": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
}
OLD_POOLING = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2))


def write_modules(folder: Path, *modules: tuple[str, Settings], body: str = "", old: bool = False) -> Path:
    """Writes modules.json for a transformer in ``body`` and ``modules``, (kind, settings) each, and their settings."""
    listed = [("Transformer", body), *((kind, f"{number}_{kind}") for number, (kind, _) in enumerate(modules, start=1))]
    names = {kind: f"sentence_transformers.models.{kind}" if old else NEW_NAMES.get(kind, kind) for kind, _ in listed}
    lines = [{"idx": i, "name": str(i), "path": path, "type": names[kind]} for i, (kind, path) in enumerate(listed)]
    write_json(folder / "modules.json", lines)
    for number, (kind, settings) in enumerate(modules, start=1):
        write_json(folder / f"{number}_{kind}" / "config.json", settings)
    return folder


def old_pooling(*modes: str, **more: Any) -> Settings:
    """Settings of Pooling as version 2 writes them: a boolean a mode."""
    return {"word_embedding_dimension": 32, **{key: mode in modes for mode, key in OLD_POOLING.items()}, **more}


def write_dense(folder: Path, number: int, inputs: int, outputs: int, seed: int = 0, **settings: Any) -> tuple[str, Settings]:
    """Writes the weights of a dense layer into its folder; returns the module for ``write_modules``."""
    rng = np.random.default_rng(seed)
    weights = {"linear.weight": rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)}
    if settings.get("bias", True):
        weights["linear.bias"] = rng.standard_normal(outputs)
    if settings.get("use_residual") and inputs != outputs:
        weights["residual.weight"] = rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)
    place = folder / f"{number}_Dense"
    place.mkdir(parents=True)
    mx.save_safetensors(str(place / "model.safetensors"), {name: mx.array(w.astype(np.float32)) for name, w in weights.items()})
    return "Dense", {"in_features": inputs, "out_features": outputs, "bias": True, **settings}
