"""Names of an encoder's weights in checkpoints, and what our modules call them. Knows no shapes.

A checkpoint holds a body, perhaps under a prefix, and heads: a classifier's, a pooler, or those of masked language models, which
nothing here needs. Older files call a LayerNorm's weight gamma and its bias beta.
"""

import re
from dataclasses import dataclass, field

import mlx.core as mx

Weights = dict[str, mx.array]

# Heads of masked language models, by the first part of their names.
LANGUAGE_HEADS = {"cls", "lm_head", "decoder", "predictions", "vocab_transform", "vocab_layer_norm", "vocab_projector"} | {
    "discriminator_predictions",  # ELECTRA's three
    "generator_predictions",
    "generator_lm_head",
}
BUFFERS = re.compile(r"(^|\.|_)(position_ids|token_type_ids|inv_freq)$")
# One product of ours, and the products of a checkpoint that it is made of, in this order.
FUSED = {"qkv": ("query", "key", "value"), "mlp_input": ("gate", "up")}
PART = {part: whole for whole, parts in FUSED.items() for part in parts}
OLD_ENDS = {"gamma": "weight", "beta": "bias"}


@dataclass(slots=True, frozen=True)
class CheckpointKeys:
    """How a family of checkpoints names its weights.

    prefixes: of the body's names, where it stands beside a head. layers: what stands before a block's number, in one writing or in
    several. names: modules outside of the blocks, block_names: modules in a block, each -> ours. Names that are in neither stay as
    they are.
    """

    prefixes: tuple[str, ...]
    layers: str | tuple[str, ...]
    names: dict[str, str]
    block_names: dict[str, str]
    _roots: frozenset[str] = field(init=False)
    _block: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        layers = (self.layers,) if isinstance(self.layers, str) else self.layers
        object.__setattr__(self, "_roots", frozenset(name.split(".")[0] for name in (*self.names, *layers)))
        object.__setattr__(self, "_block", re.compile(rf"(?:{'|'.join(map(re.escape, layers))})\.(\d+)\.(.*)"))

    def body(self, weights: Weights) -> Weights:
        """Returns the body's weights under our names; heads and buffers are left out."""
        return _fused({self._ours(name): array for name, array in self._bare(weights).items() if self._of_body(name)})

    def heads(self, weights: Weights) -> Weights:
        """Returns the weights that are not the body's, without a prefix and otherwise under their own names."""
        return {
            name: array
            for name, array in self._bare(weights).items()
            if not self._of_body(name) and name.split(".")[0] not in LANGUAGE_HEADS
        }

    def _bare(self, weights: Weights) -> Weights:
        """Returns all weights but buffers, without prefixes, LayerNorms under today's names."""
        bare: Weights = {}
        for name, array in weights.items():
            prefix = next((each for each in self.prefixes if name.startswith(each)), "")
            module, _, end = name.removeprefix(prefix).rpartition(".")
            if not BUFFERS.search(name):
                bare[f"{module}.{OLD_ENDS.get(end, end)}" if module else end] = array
        return bare

    def _of_body(self, name: str) -> bool:
        return name.split(".")[0] in self._roots

    def _ours(self, name: str) -> str:
        module, _, end = name.rpartition(".")
        if inner := self._block.fullmatch(module):
            return f"blocks.{inner[1]}.{self.block_names.get(inner[2], inner[2])}.{end}"
        return f"{self.names.get(module, module)}.{end}"


def _fused(weights: Weights) -> Weights:
    """Returns weights whose parts of one product stand one below the other. Parts that lack another part stay."""
    fused: Weights = {}
    for name, array in weights.items():
        block, _, rest = name.rpartition(".")
        block, _, module = block.rpartition(".")
        parts = [f"{block}.{part}.{rest}" for part in FUSED.get(PART.get(module, ""), ())]
        if not parts or not all(part in weights for part in parts):
            fused[name] = array
        elif name == parts[0]:
            fused[f"{block}.{PART[module]}.{rest}"] = mx.concatenate([weights[part] for part in parts])
    return fused
