"""Says how a model's hidden states become a vector. A job makes it before the model is loaded, from files and settings.

Holds no arrays: two equal specs of one checkpoint are the same model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..core.errors import ModelError

PoolingMode = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]  # sentence-transformers' names
Activation = Literal["ELU", "GELU", "Identity", "LeakyReLU", "Mish", "ReLU", "SELU", "SiLU", "Sigmoid", "Softplus", "Tanh"]  # torch.nn's


@dataclass(slots=True, frozen=True)
class DenseLayer:
    """A linear layer after pooling, with its activation. folder: where its ``model.safetensors`` lies.

    residual: its input is added to its output, through a matrix of its own where their sizes differ.
    """

    folder: Path
    inputs: int
    outputs: int
    activation: Activation
    bias: bool
    residual: bool = False


@dataclass(slots=True, frozen=True)
class Normalize:
    """Divides a vector by its Euclidean length."""


@dataclass(slots=True, frozen=True)
class EmbeddingHead:
    """Pools hidden states to an embedding.

    modes: their vectors are joined. layers: applied in their order. cut: the first numbers of the vector that are kept, None for all.
    normalize: the vector is divided by its length after the cut.
    """

    modes: tuple[PoolingMode, ...]
    layers: tuple[DenseLayer | Normalize, ...] = ()
    cut: int | None = None
    normalize: bool = False


@dataclass(slots=True, frozen=True)
class HeadLinear:
    """A linear layer of a classifier, and what follows it. name: of its weights in the checkpoint; activation: as config.json names it."""

    name: str
    inputs: int
    outputs: int
    bias: bool
    activation: str | None = None


@dataclass(slots=True, frozen=True)
class HeadNorm:
    """A LayerNorm of a classifier. name: of its weights in the checkpoint."""

    name: str
    width: int
    eps: float
    bias: bool


@dataclass(slots=True, frozen=True)
class ClassifierHead:
    """The checkpoint's own classifier or reward head: one logit a label. folder: where its weights lie, among the body's.

    reads: which states it takes: the first token's, the mean of all, or the last token's. pad: an id that does not count as the last
    token: the last one of another id is read, also where the row itself ends in it. None: all ids count. layers: in their order.
    """

    reads: Literal["first", "last", "mean"]
    layers: tuple[HeadLinear | HeadNorm, ...]
    pad: int | None = None
    folder: Path = Path()

    @property
    def labels(self) -> int:
        """The number of logits."""
        last = self.layers[-1]
        return last.outputs if isinstance(last, HeadLinear) else last.width


@dataclass(slots=True, frozen=True)
class TokenHead:
    """A generative reranker's score: the logit of the token ``yes`` after the last token, less that of ``no`` where there is one.

    One number a text: the log-odds of the two tokens.
    """

    yes: int
    no: int | None = None


@dataclass(slots=True, frozen=True)
class PoolingSpec:
    """How hidden states become a vector of ``dimensions`` numbers."""

    head: EmbeddingHead | ClassifierHead | TokenHead
    dimensions: int


def embedding_spec(head: EmbeddingHead, hidden: int) -> PoolingSpec:
    """Returns the spec of a head over states of ``hidden`` numbers. Raises ModelError where its layers do not fit one another."""
    width, of = hidden * len(head.modes), "pooling"
    for layer in head.layers:
        if isinstance(layer, DenseLayer):
            if layer.inputs != width:
                raise ModelError(f"{layer.folder}: in_features is {layer.inputs}, but {of} gives {width} numbers; fetch the model anew")
            width, of = layer.outputs, f"{layer.folder.name}"
    return PoolingSpec(head, min(width, head.cut or width))
