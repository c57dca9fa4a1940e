"""Encoders slowly, in NumPy and float64, one row at a time: the specification that our modules are tested against.

Written from the papers and transformers' names of weights: one row, so no pads, and a loop over heads.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, Array]
Config = dict[str, Any]


def gelu(x: Array) -> Array:
    """x Φ(x) (Hendrycks and Gimpel 2016)."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def layer_norm(x: Array, w: Weights, name: str, eps: float) -> Array:
    spread = x - x.mean(-1, keepdims=True)
    return spread / np.sqrt((spread**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def linear(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def attention(q: Array, k: Array, v: Array, heads: int, window: int | None = None, bias: Array | float = 0.0) -> Array:
    """q, k, v [T, H D] -> [T, H D]. A token sees keys at most ``window`` away. bias [H, T, T] is added to scores."""
    at = np.arange(len(q))
    hidden = np.abs(at[:, None] - at[None]) > (len(q) if window is None else window)
    taken: list[Array] = []
    biases = np.broadcast_to(bias, (heads, len(q), len(q)))
    for a, b, c, added in zip(*(np.split(each, heads, axis=-1) for each in (q, k, v)), biases, strict=True):
        scores = np.where(hidden, -np.inf, a @ b.T / math.sqrt(a.shape[-1]) + added)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        taken.append(weights / weights.sum(-1, keepdims=True) @ c)
    return np.concatenate(taken, axis=-1)


def rotated(x: Array, heads: int, theta: float) -> Array:
    """Pairs (i, i + D/2) of each head turned by position / theta^(2i/D) (Su et al. 2021). x [T, H D]."""
    turned: list[Array] = []
    for head in np.split(x, heads, axis=-1):
        half = head.shape[-1] // 2
        angles = np.arange(len(x))[:, None] / theta ** (np.arange(half) / half)
        a, b = head[:, :half], head[:, half:]
        turned += [a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)]
    return np.concatenate(turned, axis=-1)


def counted_from(pad: int, ids: list[int]) -> list[int]:
    """RoBERTa's positions: tokens that are no pad are counted, from the pad's id on."""
    return [pad + sum(id_ != pad for id_ in ids[: i + 1]) if ids[i] != pad else pad for i in range(len(ids))]


def bert_truth(config: Config, w: Weights, ids: list[int], types: list[int] | None = None) -> Array:
    """States [T, H] of a BERT, RoBERTa or ELECTRA body."""
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    places = list(range(len(ids))) if config["model_type"] in ("bert", "electra") else counted_from(config["pad_token_id"], ids)
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][places]
    x = x + w["embeddings.token_type_embeddings.weight"][types or [0] * len(ids)]
    x = layer_norm(x, w, "embeddings.LayerNorm", eps)
    if config.get("embedding_size", config["hidden_size"]) != config["hidden_size"]:
        x = linear(x, w, "embeddings_project")
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        q, k, v = (linear(x, w, f"{p}attention.self.{name}") for name in ("query", "key", "value"))
        x = layer_norm(x + linear(attention(q, k, v, heads), w, f"{p}attention.output.dense"), w, f"{p}attention.output.LayerNorm", eps)
        x = layer_norm(x + linear(gelu(linear(x, w, f"{p}intermediate.dense")), w, f"{p}output.dense"), w, f"{p}output.LayerNorm", eps)
    return x


def distilbert_truth(config: Config, w: Weights, ids: list[int], types: list[int] | None = None) -> Array:
    """States [T, H] of a DistilBERT body."""
    del types  # it has none
    eps = 1e-12
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = layer_norm(x, w, "embeddings.LayerNorm", eps)
    for i in range(config["n_layers"]):
        p = f"transformer.layer.{i}."
        q, k, v = (linear(x, w, f"{p}attention.{name}_lin") for name in "qkv")
        x = layer_norm(x + linear(attention(q, k, v, config["n_heads"]), w, f"{p}attention.out_lin"), w, f"{p}sa_layer_norm", eps)
        x = layer_norm(x + linear(gelu(linear(x, w, f"{p}ffn.lin1")), w, f"{p}ffn.lin2"), w, f"{p}output_layer_norm", eps)
    return x


def bucket(distance: int) -> int:
    """T5's bucket of 32 for a key's position minus its query's: 8 of one distance each way, then 8 that grow up to 128."""
    away = abs(distance)
    if away >= 8:
        away = min(8 + int(math.log(away / 8) / math.log(128 / 8) * 8), 15)
    return away + (16 if distance > 0 else 0)


def mpnet_truth(config: Config, w: Weights, ids: list[int], types: list[int] | None = None) -> Array:
    """States [T, H] of an MPNet body. Its positions count from 1 on."""
    del types  # it has none
    eps, heads, n = config["layer_norm_eps"], config["num_attention_heads"], len(ids)
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][counted_from(1, ids)]
    x = layer_norm(x, w, "embeddings.LayerNorm", eps)
    buckets = [[bucket(key - query) for key in range(n)] for query in range(n)]
    bias = w["encoder.relative_attention_bias.weight"][buckets].transpose(2, 0, 1)
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        q, k, v = (linear(x, w, f"{p}attention.attn.{name}") for name in "qkv")
        seen = linear(attention(q, k, v, heads, bias=bias), w, f"{p}attention.attn.o")
        x = layer_norm(x + seen, w, f"{p}attention.LayerNorm", eps)
        x = layer_norm(x + linear(gelu(linear(x, w, f"{p}intermediate.dense")), w, f"{p}output.dense"), w, f"{p}output.LayerNorm", eps)
    return x


def nomic_truth(config: Config, w: Weights, ids: list[int], types: list[int] | None = None) -> Array:
    """States [T, H] of a Nomic BERT body: SwiGLU, whose gate is fc12 (Shazeer 2020)."""
    eps, heads, theta = config["layer_norm_eps"], config["num_attention_heads"], config["rope_parameters"]["rope_theta"]
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types or [0] * len(ids)]
    x = layer_norm(x, w, "emb_ln", eps)
    for i in range(config["num_hidden_layers"]):
        p = f"encoder.layers.{i}."
        q, k, v = np.split(linear(x, w, f"{p}attn.Wqkv"), 3, axis=-1)
        seen = attention(rotated(q, heads, theta), rotated(k, heads, theta), v, heads)
        x = layer_norm(x + linear(seen, w, f"{p}attn.out_proj"), w, f"{p}norm1", eps)
        gate = linear(x, w, f"{p}mlp.fc12")
        x = layer_norm(x + linear(linear(x, w, f"{p}mlp.fc11") * gate / (1 + np.exp(-gate)), w, f"{p}mlp.fc2"), w, f"{p}norm2", eps)
    return x


def modernbert_truth(config: Config, w: Weights, ids: list[int], types: list[int] | None = None) -> Array:
    """States [T, H] of a ModernBERT body, of a config with the older names."""
    del types  # it has none
    eps, heads = config["norm_eps"], config["num_attention_heads"]
    x = layer_norm(w["embeddings.tok_embeddings.weight"][ids], w, "embeddings.norm", eps)
    for i in range(config["num_hidden_layers"]):
        p, whole = f"layers.{i}.", i % config["global_attn_every_n_layers"] == 0
        theta = config["global_rope_theta"] if whole else config["local_rope_theta"]
        y = layer_norm(x, w, f"{p}attn_norm", eps) if i else x
        q, k, v = np.split(linear(y, w, f"{p}attn.Wqkv"), 3, axis=-1)
        seen = attention(rotated(q, heads, theta), rotated(k, heads, theta), v, heads, None if whole else config["local_attention"] // 2)
        x = x + linear(seen, w, f"{p}attn.Wo")
        value, gate = np.split(linear(layer_norm(x, w, f"{p}mlp_norm", eps), w, f"{p}mlp.Wi"), 2, axis=-1)
        x = x + linear(gelu(value) * gate, w, f"{p}mlp.Wo")
    return layer_norm(x, w, "final_norm", eps)


TRUTHS = {
    "bert": bert_truth,
    "roberta": bert_truth,
    "modernbert": modernbert_truth,
    "mpnet": mpnet_truth,
    "distilbert": distilbert_truth,
    "electra": bert_truth,
    "nomic_bert": nomic_truth,
}
