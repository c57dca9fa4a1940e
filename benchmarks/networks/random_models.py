"""Networks of random weights in the shapes of Qwen3 and its mixture of experts, built on the device: no file is read or written.

Weights are spread, so that logits are, and attention looks at few tokens: a wrong mask or position moves logprobs far.
"""

import json
import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from networks import shapes

from mlx.utils import tree_flatten, tree_unflatten
from mlx_bulk.runner.models.checkpoint import Checkpoint
from mlx_bulk.runner.models.loader import LanguageModel, has_scales
from mlx_lm.utils import quantize_model

mx = shapes.mx

GROUP = 64  # weights that share a scale, at 4 bits
SHARPNESS = 1.5  # of the norms of queries and keys: logits of attention spread by its square

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "eos_token_id": 151645,
}
TINY: dict[str, Any] = {"vocab_size": 512, "head_dim": 64, "num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 64}
MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}


def _dense(hidden: int, layers: int, intermediate: int, heads: int, tied: bool) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": intermediate, "num_attention_heads": heads}
    return QWEN3 | sizes | {"tie_word_embeddings": tied}


MODELS: dict[str, dict[str, Any]] = {
    "0.6b": _dense(1024, 28, 3072, 16, tied=True),
    "4b": _dense(2560, 36, 9728, 32, tied=True),
    "8b": _dense(4096, 36, 12288, 32, tied=False),
    "30b-a3b": _dense(2048, 48, 6144, 32, tied=False) | MIXTURE | {"num_key_value_heads": 4, "moe_intermediate_size": 768},
    "tiny": _dense(64, 2, 128, 4, tied=True) | TINY,
    "tiny-moe": _dense(64, 2, 128, 4, tied=False)
    | MIXTURE
    | TINY
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


@dataclass(slots=True, frozen=True)
class Variant:
    """A shape of ``MODELS`` in bfloat16, or with weights of 4 bits; ``layers``: fewer than its own, to fit in memory."""

    model: str
    four_bits: bool = False
    layers: int | None = None

    @property
    def name(self) -> str:
        """As it stands in the table."""
        fewer = f" ({self.layers} layers)" if self.layers else ""
        return f"{self.model}{fewer} {'4 bits' if self.four_bits else 'bfloat16'}"

    @property
    def config(self) -> dict[str, Any]:
        """Its config.json."""
        shape = MODELS[self.model]
        return shape | {"num_hidden_layers": self.layers or shape["num_hidden_layers"]}

    @property
    def kv_bytes(self) -> int:
        """Of a cached token in bfloat16."""
        shape = self.config
        return 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]

    def weights(self, experts: int | None = None) -> int:
        """Parameters of the layers; with so many ``experts`` a layer, where it is a mixture (None: all)."""
        shape = self.config
        hidden, heads = shape["hidden_size"], shape["num_attention_heads"] + shape["num_key_value_heads"]
        attention = 2 * hidden * heads * shape["head_dim"]
        if "num_experts" not in shape:
            return shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
        used = shape["num_experts"] if experts is None else experts
        experts_and_gate = 3 * used * shape["moe_intermediate_size"] + shape["num_experts"]
        return shape["num_hidden_layers"] * (attention + hidden * experts_and_gate)

    @property
    def head(self) -> int:
        """Parameters of the LM head."""
        return self.config["hidden_size"] * self.config["vocab_size"]

    @property
    def weight_bytes(self) -> int:
        """Of all parameters, with the scales and biases of 4 bits."""
        tables = 1 if self.config["tie_word_embeddings"] else 2
        return int((self.weights() + tables * self.head) * self.parameter_bytes)

    @property
    def parameter_bytes(self) -> float:
        """Of one parameter."""
        return (4 + 2 * 16 / GROUP) / 8 if self.four_bits else 2.0


def build(variant: Variant) -> LanguageModel:
    """The network with random weights, each evaluated on its own: in between no more than one matrix is in bfloat16."""
    config = variant.config
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    mx.random.seed(0)
    drawn = [(name, _drawn(name, value.shape)) for name, value in tree_flatten(network.parameters())]
    network.update(tree_unflatten(drawn))
    del drawn
    if variant.four_bits:
        network, config = quantize_model(network, config, GROUP, 4)
    network.eval()
    held = [value for _, value in tree_flatten(network.parameters())]
    for value in held:
        mx.eval(value)
    mx.clear_cache()
    checkpoint = Checkpoint(Path(f"Qwen3-{variant.name}"), None, config)
    size = sum(value.nbytes for value in held)
    return LanguageModel(network, checkpoint, config["vocab_size"], "bfloat16", size, quantized=has_scales(network))


def _drawn(name: str, shape: tuple[int, ...]) -> Any:
    """Random values, unevaluated: products keep the size of what they are given, the token table's rows have length 1."""
    if len(shape) == 1:
        middle = SHARPNESS if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        return mx.random.normal(shape, mx.bfloat16, loc=middle, scale=0.1)
    return mx.random.normal(shape, mx.bfloat16, scale=1 / math.sqrt(shape[-1]))


def save(folder: Path, model: LanguageModel) -> None:
    """Writes a checkpoint that transformers and vLLM load, a file a layer.

    From copies: mlx on CUDA moves what is written to memory that host and device share, and leaves it there.
    """
    parts: dict[str, dict[str, Any]] = {}
    for name, value in tree_flatten(model.network.parameters()):
        words = name.split(".")
        parts.setdefault(words[2] if words[1] == "layers" else "rest", {})[name] = value
    index: dict[str, str] = {}
    for part, values in parts.items():
        copies = {name: value + mx.zeros_like(value) for name, value in values.items()}
        mx.save_safetensors(str(folder / f"model-{part}.safetensors"), copies, metadata={"format": "pt"})
        index |= dict.fromkeys(values, f"model-{part}.safetensors")
        del copies
        mx.clear_cache()
    (folder / "config.json").write_text(json.dumps(model.checkpoint.config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
