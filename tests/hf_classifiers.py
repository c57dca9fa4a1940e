"""Tiny random classifiers, reward models and language models as transformers saves them, without tokenizers: rows are ids.

Weights are spread: logits differ by about 1 from row to row, so a wrong token, mask or position shows.
"""

from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.configs.schema import ModelConfig
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.pooling_loader import load_pooling_model
from mlx_bulk.runner.pooling.checkpoint_head import checkpoint_head
from mlx_bulk.runner.pooling.spec import PoolingSpec, TokenHead
from numpy.typing import NDArray

from .checkpoints import PLENTY

VOCABULARY = 320
PAD = 1
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 130,
    "pad_token_id": PAD,
}
DECODER: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
QWEN2 = {name: value for name, value in DECODER.items() if name != "head_dim"}
GEMMA = DECODER | {"num_hidden_layers": 7, "sliding_window": 16, "query_pre_attn_scalar": 16, "bos_token_id": 2, "eos_token_id": 3}
ROBERTA = SIZES | {"type_vocab_size": 1, "bos_token_id": 0, "eos_token_id": 2}
MODERNBERT = SIZES | {"num_hidden_layers": 5, "local_attention": 16, "global_attn_every_n_layers": 3}
IDS = {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 128, "max_position_embeddings": 130}
# The config's class in transformers without its end, and its settings.
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", DECODER),
    "qwen2": ("Qwen2", QWEN2),
    "llama": ("Llama", DECODER),
    "mistral": ("Mistral", DECODER | {"sliding_window": 16}),
    "gemma2": ("Gemma2", GEMMA | {"num_hidden_layers": 4}),
    "gemma3_text": ("Gemma3Text", GEMMA),
    "phi3": ("Phi3", QWEN2 | {"bos_token_id": 2, "eos_token_id": 3}),
    "olmo2": ("Olmo2", QWEN2),
    "granite": ("Granite", QWEN2 | {"logits_scaling": 3.0, "embedding_multiplier": 2.0}),
    "cohere": ("Cohere", QWEN2 | {"logit_scale": 0.25, "bos_token_id": 2, "eos_token_id": 3}),
    "bert": ("Bert", SIZES),
    "roberta": ("Roberta", ROBERTA),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "mpnet": ("MPNet", SIZES | {"bos_token_id": 0, "eos_token_id": 2}),
    "distilbert": ("DistilBert", DISTILBERT | {"pad_token_id": PAD}),
    "camembert": ("Camembert", ROBERTA),
    "electra": ("Electra", SIZES | {"embedding_size": 32}),
    "nomic_bert": ("NomicBert", SIZES),
    "modernbert": ("ModernBert", MODERNBERT | IDS),
}
LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 23, 33, 40, 64, 77, 95, 100]


def write_classifier(folder: Path, architecture: str, labels: int | None, **settings: Any) -> Any:
    """Writes a sequence classifier, or with ``labels`` None a language model, and returns it as torch's, float32."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers

    name, differs = CLASSIFIERS[architecture]
    named = {} if labels is None else {"id2label": {i: f"label {i}" for i in range(labels)}}
    config = getattr(transformers, f"{name}Config")(**{**differs, **named, **settings})
    auto: Any = transformers.AutoModelForCausalLM if labels is None else transformers.AutoModelForSequenceClassification
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=draws)
            if parameter.ndim == 1:
                parameter.add_(0.2 * drawn)
            elif "embed" in part:
                parameter.copy_(drawn * (0.5 if "position" in part or "token_type" in part else 1.0))
            else:
                parameter.copy_(drawn * 1.5 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return model


def random_rows(lengths: list[int] = LENGTHS, seed: int = 0) -> list[list[int]]:
    """Rows of ids that are no special ones."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCABULARY, length).tolist() for length in lengths]


def network_of(folder: Path, tokens: TokenHead | None = None) -> Any:
    """The pooling network of a checkpoint as the runner loads it: with its own head, or that of two tokens."""
    config = ModelConfig(path=str(folder))
    checkpoint = find_checkpoint(config)
    spec = PoolingSpec(tokens, 1) if tokens else checkpoint_head(checkpoint.folder, checkpoint.config).spec
    return load_pooling_model(config, checkpoint, spec, PLENTY).network


def logits_of(network: Any, rows: list[list[int]], pad: int = 0) -> NDArray[np.float32]:
    """Logits [B, labels] of rows in one batch, padded on the right."""
    import mlx.core as mx

    tokens = np.full((len(rows), max(map(len, rows))), pad, np.int32)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = row
    return np.array(network(mx.array(tokens), [len(row) for row in rows]))


def logits_of_torch(model: Any, rows: list[list[int]]) -> NDArray[np.float32]:
    """Logits [B, labels] of rows, each alone."""
    import torch  # pyright: ignore[reportMissingImports]

    with torch.no_grad():
        return np.concatenate([model(input_ids=torch.tensor([row])).logits.numpy() for row in rows])
