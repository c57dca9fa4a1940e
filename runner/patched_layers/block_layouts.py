"""What mlx-lm's decoder blocks are made of: where each architecture keeps its projections and norms, and what it does with them.

``cpu_blocks`` makes the kernel's block of it. A block of a class that is not named here, or one with a part that is not of our classes (as
when it is adapted), computes layer by layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import (
    dots1,
    ernie4_5,
    ernie4_5_moe,
    gemma,
    gemma2,
    gemma3_text,
    glm4,
    granite,
    helium,
    internlm3,
    llama,
    mimo,
    mixtral,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
)
from numpy.typing import NDArray

from ...kernels import native
from ...kernels.quantized import QuantizedWeight
from .cpu_layers import NORM_CLASSES, FastLinear, FastQuantizedLinear, packing_of
from .rope_layers import ROTATIONS

Place = tuple[str, str]  # the module in a block, and the part in it

BEFORE = {"norm": "input_layernorm", "second_norm": "post_attention_layernorm"}
BEHIND = {"post_norm": "post_attention_layernorm", "second_post_norm": "post_feedforward_layernorm"}
AROUND = {"norm": "input_layernorm", "second_norm": "pre_feedforward_layernorm", **BEHIND}
APART: Mapping[str, Place] = {
    **{name: ("self_attn", f"{name}_proj") for name in ("q", "k", "v", "o")},
    **{name: ("mlp", f"{name}_proj") for name in ("gate", "up", "down")},
}
JOINED: Mapping[str, Place] = {
    **{name: ("self_attn", f"{name}_proj") for name in ("qkv", "o")},
    **{name: ("mlp", f"{name}_proj") for name in ("gate_up", "down")},
}
HEAD_NORMS: Mapping[str, Place] = {name: ("self_attn", name) for name in ("q_norm", "k_norm")}  # some architectures have them


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A class of blocks. projections: by the names of ``Weights``; "qkv" and "gate_up" are several in one. norms: attributes of the block.

    List a class only if its call does what ``decoder_block.reference`` does. The trial at load refuses one that differs.

    wide_norms: the norms of queries and keys go over all heads at once. activation: one of ``ACTIVATIONS``. residual: the block's
    attribute with the factor of its two results. cap: the attention's attribute with the cap of its scores. None where there is none.
    heads: the attention's attributes with the numbers of query heads and of key heads. rest: the norm and the feed-forward of the second
    half (experts, say), where the kernel has the first half alone.
    """

    projections: Mapping[str, Place] = field(default_factory=lambda: APART)
    norms: Mapping[str, str] = field(default_factory=lambda: BEFORE)
    wide_norms: bool = False
    activation: str = "silu"
    residual: str | None = None
    cap: str | None = None
    heads: tuple[str, str] = ("n_heads", "n_kv_heads")
    rest: tuple[str, str] | None = None

    def finished(self, layer: Any, x: mx.array) -> mx.array:
        """Returns a block's output of what the kernel has computed of it."""
        if self.rest is None:
            return x
        norm, feed_forward = self.rest
        return x + layer[feed_forward](layer[norm](x))

    def counts(self, layer: Any) -> tuple[int, int]:
        """Returns how many heads the attention of a block has, and how many of keys."""
        of, of_keys = (getattr(layer["self_attn"], name) for name in self.heads)
        return of, of_keys

    def constants(self, layer: Any) -> dict[str, Any]:
        """Returns those of ``Constants`` that the layout knows, but for the epsilons."""
        found: dict[str, Any] = {"wide_norms": self.wide_norms, "activation": self.activation}
        found |= {} if self.residual is None else {"residual": getattr(layer, self.residual)}
        return found | ({} if self.cap is None else {"cap": getattr(layer["self_attn"], self.cap)})


_PLAIN = BlockLayout()
_JOINED_MLP = {name: place for name, place in {**APART, **JOINED}.items() if name not in ("qkv", "gate", "up")}
_GLM4_NORMS = {**BEFORE, "post_norm": "post_self_attn_layernorm", "second_post_norm": "post_mlp_layernorm"}
_SECOND = BEFORE["second_norm"]
_BEFORE_EXPERTS = BlockLayout(
    {name: place for name, place in APART.items() if place[0] == "self_attn"}, {"norm": BEFORE["norm"]}, rest=(_SECOND, "mlp")
)
_LAYOUTS: dict[type, BlockLayout] = {
    llama.TransformerBlock: _PLAIN,
    qwen2.TransformerBlock: _PLAIN,
    qwen3.TransformerBlock: _PLAIN,
    ernie4_5.DecoderLayer: _PLAIN,
    helium.HeliumDecoderLayer: _PLAIN,
    internlm3.TransformerBlock: _PLAIN,
    mimo.TransformerBlock: _PLAIN,
    seed_oss.TransformerBlock: _PLAIN,
    phi3.TransformerBlock: BlockLayout(JOINED),
    glm4.Glm4DecoderLayer: BlockLayout(_JOINED_MLP, _GLM4_NORMS),
    granite.TransformerBlock: BlockLayout(residual="residual_multiplier"),
    olmo2.TransformerBlock: BlockLayout(norms=BEHIND, wide_norms=True),
    gemma.TransformerBlock: BlockLayout(activation="gelu"),
    gemma2.TransformerBlock: BlockLayout(norms=AROUND, activation="gelu_tanh", cap="attn_logit_softcapping"),
    gemma3_text.TransformerBlock: BlockLayout(norms=AROUND, activation="gelu_tanh"),
    dots1.Dots1DecoderLayer: _BEFORE_EXPERTS,
    ernie4_5_moe.Ernie4_5_DecoderLayer: _BEFORE_EXPERTS,
    mixtral.MixtralDecoderLayer: replace(_BEFORE_EXPERTS, heads=("num_heads", "num_key_value_heads"), rest=(_SECOND, "block_sparse_moe")),
    olmoe.TransformerBlock: replace(_BEFORE_EXPERTS, wide_norms=True),
    qwen2_moe.Qwen2MoeDecoderLayer: _BEFORE_EXPERTS,
    qwen3_moe.Qwen3MoeDecoderLayer: _BEFORE_EXPERTS,
}
DECODER_BLOCKS = tuple(_LAYOUTS)


def has_kernel(layer: Any) -> bool:
    """Returns True for a block, also of an outline, that the kernel serves, with its classes or mlx's, and of which it computes all."""
    if not isinstance(layer, DECODER_BLOCKS) or (layout := layout_of(layer)).rest is not None:
        return False
    projections = [layer[parent].get(name) for parent, name in layout.projections.values()]
    return isinstance(layer["self_attn"].get("rope"), ROTATIONS) and all(map(_is_served, projections))


def _is_served(projection: Any) -> bool:
    if isinstance(projection, nn.QuantizedLinear):
        weight = QuantizedWeight.of(projection)
        return weight is not None and weight.scales.dtype == mx.float32
    return isinstance(projection, nn.Linear) and projection.weight.dtype == mx.float32


def layout_of(layer: Any) -> BlockLayout:
    """Returns the layout of a block, which is of one of ``DECODER_BLOCKS``."""
    return _layout_of(type(layer))


@cache
def _layout_of(block: type) -> BlockLayout:
    return next(layout for of, layout in _LAYOUTS.items() if issubclass(block, of))


def parts_of(layer: Any) -> dict[str, Any] | None:
    """Returns a block's arrays and quantized weights by the layout's names, biases with "_bias" behind them.

    None where a part is not one of our classes, as when it is adapted.
    """
    layout, found = layout_of(layer), dict[str, Any]()
    for name, (parent, attribute) in layout.projections.items():
        part = layer[parent].get(attribute)
        if type(part) not in (FastLinear, FastQuantizedLinear):
            return None
        weight = part["weight"] if type(part) is FastLinear else QuantizedWeight.of(part)
        if weight is None:
            return None
        found[name] = weight
        if "bias" in part:
            found[f"{name}_bias"] = part["bias"]
    norms = norms_of(layer)
    if not all(type(norm) in NORM_CLASSES for norm in norms.values()) or len({NORM_CLASSES[type(norm)] for norm in norms.values()}) > 1:
        return None
    return found | {name: norm["weight"] for name, norm in norms.items()}


def norms_of(layer: Any) -> dict[str, Any]:
    """Returns the norms that a block has, by the names of ``Weights``."""
    found = {name: layer[attribute] for name, attribute in layout_of(layer).norms.items()}
    return found | {name: layer[parent][attribute] for name, (parent, attribute) in HEAD_NORMS.items() if attribute in layer[parent]}


def norm_constants(layer: Any) -> dict[str, Any]:
    """Returns those of ``Constants`` that the norms of a block hold."""
    norms = norms_of(layer)
    return {f"{name.removesuffix('norm')}eps": norm.eps for name, norm in norms.items()} | {
        "norm_more": max(NORM_CLASSES[type(norm)] for norm in norms.values())
    }


def divided(parts: Mapping[str, Any], heads: int, kv: int) -> dict[str, Any]:
    """Returns the parts by the names of ``Weights``: of a projection that is several in one, views. heads, kv: numbers of heads.

    Raises Traced.
    """
    found: dict[str, Any] = {}
    for name, array in parts.items():
        base = name.removesuffix("_bias")
        shares = {"qkv": {"q": heads, "k": kv, "v": kv}, "gate_up": {"gate": 1, "up": 1}}.get(base)
        if shares is None:
            found[name] = array
            continue
        unit, begin = array.shape[0] // sum(shares.values()), 0
        dense = array.dense() if isinstance(array, QuantizedWeight) else native.dense(array)  # so that its views lie one behind the other
        for one, share in shares.items():
            found[one + name.removeprefix(base)] = dense[begin : begin + share * unit]
            begin += share * unit
    return found


def packings(layer: Any, parts: Mapping[str, Any]) -> dict[str, NDArray[Any] | None]:
    """Returns the projections that a block holds packed too, by the layout's names. Raises Traced."""
    places = layout_of(layer).projections.items()
    return {name: packing_of(layer[parent][at], parts[name], parts.get(f"{name}_bias")) for name, (parent, at) in places}
