"""Tiny random encoder checkpoints on disk as the hub has them: config.json, model.safetensors under transformers' names, a tokenizer.

Weights never change and are spread: a wrong mask, position or token type moves states by a tenth and more. Without ``labels`` a folder
holds a body alone, as ``AutoModel`` saves it; with them a sequence classifier, its body under a prefix.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import Tokenizer as Backend

from .encoder_shapes import (
    Shapes,
    bert_shapes,
    distilbert_shapes,
    linear,
    modernbert_shapes,
    mpnet_shapes,
    nomic_shapes,
    spread_weights,
)
from .encoder_tokenizers import byte_pairs, word_pieces

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
BERT: dict[str, Any] = SIZES | {
    "model_type": "bert",
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA: dict[str, Any] = BERT | {
    "model_type": "roberta",
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 130,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
MODERNBERT: dict[str, Any] = SIZES | {
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "local_attention": 8,  # shorter than most rows
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "classifier_pooling": "cls",
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "bos_token_id": 2,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
DISTILBERT: dict[str, Any] = {
    "model_type": "distilbert",
    "vocab_size": 320,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "activation": "gelu",
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
ELECTRA: dict[str, Any] = BERT | {"model_type": "electra", "embedding_size": 16}
MPNET: dict[str, Any] = SIZES | {
    "model_type": "mpnet",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 130,
    "relative_attention_num_buckets": 32,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
# As on the hub today: transformers' names of sizes beside settings of the hub's own code.
NOMIC: dict[str, Any] = SIZES | {
    "model_type": "nomic_bert",
    "hidden_act": "silu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "n_positions": 128,
    "max_trained_positions": 64,
    "activation_function": "swiglu",
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "pad_token_id": 0,
}


def tiny_bert(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes a BERT with a WordPiece tokenizer that gives token types: [CLS] a [SEP] b [SEP]."""
    merged = BERT | config
    width = merged["hidden_size"]
    body = bert_shapes(merged) | linear({"pooler.dense": (width, width)})
    head = linear({"classifier": (labels or 0, width)})
    return _write(folder, merged, body, "bert.", head, labels, word_pieces())


def tiny_roberta(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes a RoBERTa with a byte-level BPE tokenizer: <s> a </s></s> b </s>, no types."""
    merged = ROBERTA | config
    width = merged["hidden_size"]
    body = bert_shapes(merged) | ({} if labels else linear({"pooler.dense": (width, width)}))
    head = linear({"classifier.dense": (width, width), "classifier.out_proj": (labels or 0, width)})
    tokenizer = byte_pairs(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return _write(folder, merged, body, "roberta.", head, labels, tokenizer)


def tiny_modernbert(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes a ModernBERT whose window is shorter than most rows, with a byte-level BPE tokenizer: [CLS] a [SEP] b [SEP]."""
    merged = MODERNBERT | config
    width = merged["hidden_size"]
    head: Shapes = {"head.dense.weight": (width, width), "head.norm.weight": (width,)}
    head |= linear({"classifier": (labels or 0, width)})
    tokenizer = byte_pairs(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")
    return _write(folder, merged, modernbert_shapes(merged), "model.", head, labels, tokenizer)


def tiny_distilbert(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes a DistilBERT with BERT's tokenizer."""
    merged = DISTILBERT | config
    width = merged["dim"]
    head = linear({"pre_classifier": (width, width), "classifier": (labels or 0, width)})
    return _write(folder, merged, distilbert_shapes(merged), "distilbert.", head, labels, word_pieces())


def tiny_mpnet(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes an MPNet with a WordPiece tokenizer and RoBERTa's brackets: <s> a </s></s> b </s>, no types."""
    merged = MPNET | config
    width = merged["hidden_size"]
    body = mpnet_shapes(merged) | ({} if labels else linear({"pooler.dense": (width, width)}))
    head = linear({"classifier.dense": (width, width), "classifier.out_proj": (labels or 0, width)})
    return _write(folder, merged, body, "mpnet.", head, labels, word_pieces(roberta=True))


def tiny_electra(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes an ELECTRA whose embeddings are narrower than its states, with BERT's tokenizer."""
    merged = ELECTRA | config
    width, narrow = merged["hidden_size"], merged["embedding_size"]
    tables = {name: shape for name, shape in bert_shapes(merged | {"hidden_size": narrow}).items() if name.startswith("embeddings.")}
    body = bert_shapes(merged) | tables | (linear({"embeddings_project": (width, narrow)}) if narrow != width else {})
    head = linear({"classifier.dense": (width, width), "classifier.out_proj": (labels or 0, width)})
    return _write(folder, merged, body, "electra.", head, labels, word_pieces())


def tiny_nomic(folder: Path, labels: int | None = None, **config: Any) -> Path:
    """Writes a Nomic BERT under the names of the hub's own code, with BERT's tokenizer. It has no pooler unless it classifies."""
    merged = NOMIC | config
    width = merged["hidden_size"]
    body = nomic_shapes(merged) | (linear({"pooler.dense": (width, width)}) if labels else {})
    return _write(folder, merged, body, "nomic_bert.", linear({"classifier": (labels or 0, width)}), labels, word_pieces())


TINY_ENCODERS: dict[str, Callable[..., Path]] = {
    "bert": tiny_bert,
    "roberta": tiny_roberta,
    "modernbert": tiny_modernbert,
    "mpnet": tiny_mpnet,
    "distilbert": tiny_distilbert,
    "electra": tiny_electra,
    "nomic_bert": tiny_nomic,
}


# model_type -> how transformers' classes begin.
FAMILIES = {
    "bert": "Bert",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "modernbert": "ModernBert",
    "mpnet": "MPNet",
    "nomic_bert": "NomicBert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}


def _write(folder: Path, config: dict[str, Any], body: Shapes, prefix: str, head: Shapes, labels: int | None, tokenizer: Backend) -> Path:
    """Writes the files. With ``labels`` the body stands under ``prefix`` beside ``head``; without, there is no head."""
    family = FAMILIES[config["model_type"]]
    config = config | {"architectures": [f"{family}{'ForSequenceClassification' if labels else 'Model'}"]}
    if labels:
        body = {prefix + name: shape for name, shape in body.items()} | head
        names = [f"LABEL_{i}" for i in range(labels)]
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), spread_weights(body), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer.save(str(folder / "tokenizer.json"))
    brackets = tokenizer.token_to_id("[CLS]") is not None
    special = ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]") if brackets else ("<s>", "</s>", "<pad>", "<mask>", "<unk>")
    typed = config.get("type_vocab_size", 0) > 1
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"] - (0 if brackets else 2),
        "model_input_names": ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"],
        **dict(zip(("cls_token", "sep_token", "pad_token", "mask_token", "unk_token"), special, strict=True)),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder
