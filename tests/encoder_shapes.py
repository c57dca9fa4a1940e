"""The weights of encoders by their names in checkpoints: shapes from a config, and numbers that are spread."""

from typing import Any

import mlx.core as mx
import numpy as np

Shapes = dict[str, tuple[int, ...]]


def linear(layers: dict[str, tuple[int, int]], bias: bool = True) -> Shapes:
    """Weights [N, K] of linear layers, and their biases [N]."""
    shapes: Shapes = {f"{name}.weight": shape for name, shape in layers.items()}
    return shapes | ({f"{name}.bias": shape[:1] for name, shape in layers.items()} if bias else {})


def norms(names: list[str], width: int, bias: bool = True) -> Shapes:
    return {f"{name}.{part}": (width,) for name in names for part in (("weight", "bias") if bias else ("weight",))}


def bert_shapes(config: dict[str, Any]) -> Shapes:
    """Weights of a BERT or RoBERTa body, by transformers' names."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        **norms(["embeddings.LayerNorm"], width),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        square = [f"{layer}attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")]
        shapes |= linear(dict.fromkeys(square, (width, width)))
        shapes |= linear({f"{layer}intermediate.dense": (inner, width), f"{layer}output.dense": (width, inner)})
        shapes |= norms([f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"], width)
    return shapes


def modernbert_shapes(config: dict[str, Any]) -> Shapes:
    """Weights of a ModernBERT body, by transformers' names. The first block has no norm before its attention."""
    width, inner, bias = config["hidden_size"], config["intermediate_size"], config["norm_bias"]
    shapes: Shapes = {"embeddings.tok_embeddings.weight": (config["vocab_size"], width)}
    shapes |= norms(["embeddings.norm", "final_norm"], width, bias)
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}."
        shapes |= linear({f"{layer}attn.Wqkv": (3 * width, width), f"{layer}attn.Wo": (width, width)}, config["attention_bias"])
        shapes |= linear({f"{layer}mlp.Wi": (2 * inner, width), f"{layer}mlp.Wo": (width, inner)}, config["mlp_bias"])
        shapes |= norms([f"{layer}mlp_norm", *([f"{layer}attn_norm"] if i else [])], width, bias)
    return shapes


def distilbert_shapes(config: dict[str, Any]) -> Shapes:
    """Weights of a DistilBERT body, by transformers' names."""
    width, inner = config["dim"], config["hidden_dim"]
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        **norms(["embeddings.LayerNorm"], width),
    }
    for i in range(config["n_layers"]):
        layer = f"transformer.layer.{i}."
        square = [f"{layer}attention.{name}_lin" for name in ("q", "k", "v", "out")]
        shapes |= linear(dict.fromkeys(square, (width, width)))
        shapes |= linear({f"{layer}ffn.lin1": (inner, width), f"{layer}ffn.lin2": (width, inner)})
        shapes |= norms([f"{layer}sa_layer_norm", f"{layer}output_layer_norm"], width)
    return shapes


def mpnet_shapes(config: dict[str, Any]) -> Shapes:
    """Weights of an MPNet body, by transformers' names."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        **norms(["embeddings.LayerNorm"], width),
        "encoder.relative_attention_bias.weight": (32, config["num_attention_heads"]),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        shapes |= linear({f"{layer}attention.attn.{name}": (width, width) for name in "qkvo"})
        shapes |= linear({f"{layer}intermediate.dense": (inner, width), f"{layer}output.dense": (width, inner)})
        shapes |= norms([f"{layer}attention.LayerNorm", f"{layer}output.LayerNorm"], width)
    return shapes


def nomic_shapes(config: dict[str, Any]) -> Shapes:
    """Weights of a Nomic BERT body, by the names of the hub's own code."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        **norms(["emb_ln"], width),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layers.{i}."
        shapes |= linear({f"{layer}attn.Wqkv": (3 * width, width), f"{layer}attn.out_proj": (width, width)}, bias=False)
        shapes |= linear({f"{layer}mlp.{name}": (inner, width) for name in ("fc11", "fc12")}, bias=False)
        shapes |= linear({f"{layer}mlp.fc2": (width, inner)}, bias=False)
        shapes |= norms([f"{layer}norm1", f"{layer}norm2"], width)
    return shapes


def spread_weights(shapes: Shapes, seed: int = 0) -> dict[str, mx.array]:
    """Random weights: products keep the size of numbers and a half more, norms differ from 1 and 0 by a third."""
    rng = np.random.default_rng(seed)
    weights: dict[str, mx.array] = {}
    for name, shape in shapes.items():
        drawn = rng.standard_normal(shape)
        if len(shape) == 2:
            drawn *= 1.0 if "embeddings" in name else 1.2 / np.sqrt(shape[1])
        else:
            drawn = 0.3 * drawn + (name.endswith("weight"))
        weights[name] = mx.array(drawn.astype(np.float32))
    return weights
