"""Tiny reward models on disk: a random body of mlx-lm's with a score of one label, and the demo's tokenizer. And what they must give."""

import json
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from .checkpoints import LLAMA, copy_tokenizer

PAD = 7
REWARD: dict[str, Any] = LLAMA | {
    "architectures": ["LlamaForSequenceClassification"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "id2label": {"0": "LABEL_0"},
}
SPREAD = 6.0  # on each weight matrix: rewards then differ by more than 0.1


def write_reward_model(folder: Path, seed: int = 0, labels: int = 1, **config: Any) -> Path:
    """Writes a reward model with random weights, the same for each ``seed``, into ``folder``."""
    config = REWARD | {"id2label": {str(label): f"LABEL_{label}" for label in range(labels)}} | config
    mx.random.seed(seed)
    body = _body(config)
    body.update(tree_map_with_path(lambda _, w: w * SPREAD if w.ndim == 2 else w, body.parameters()))
    weights: dict[str, Any] = {f"model.{name}": array for name, array in tree_flatten(body.parameters())}
    weights["score.weight"] = mx.random.normal((labels, config["hidden_size"]))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    copy_tokenizer(folder)
    return folder


def _body(config: dict[str, Any]) -> Any:
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    return module.Model(module.ModelArgs.from_dict(config)).model


def reward_of(folder: Path, text: str) -> float:
    """The reward of a text by itself: one pass of mlx-lm's body, and the score of the last token that is no pad."""
    body, score, tokenizer, pad = _rater(folder, (folder / "model.safetensors").stat().st_mtime_ns)
    ids = tokenizer.encode_text(text).ids.tolist()
    last = max((at for at, token in enumerate(ids) if token != pad), default=0)
    return float((body(mx.array([ids]))[0, last] @ score[0]).item())


@lru_cache(maxsize=2)
def _rater(folder: Path, _: int) -> tuple[Any, mx.array, Tokenizer, int]:
    """A reward model's body, score and tokenizer, and its pad. Another time of its weights names another model."""
    config = json.loads((folder / "config.json").read_text())
    weights: Any = mx.load(str(folder / "model.safetensors"))
    score, body = weights.pop("score.weight"), _body(config)
    body.load_weights([(name.removeprefix("model."), array) for name, array in weights.items()])
    return body, score, load_tokenizer(folder, None, {}, False), config["pad_token_id"]


def chat_text(folder: Path, messages: list[dict[str, Any]]) -> str:
    """A chat as transformers' tokenizer writes it."""
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(str(folder)).apply_chat_template(messages, tokenize=False))
