"""Says how a model's hidden states become a vector. A job makes it before the model is loaded, from files and settings.

Holds no arrays: two equal specs of one checkpoint are the same model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PoolingMode = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]  # sentence-transformers' names


@dataclass(slots=True, frozen=True)
class DenseLayer:
    """A linear layer after pooling, with its activation. folder: where its ``model.safetensors`` lies; activation: PyTorch's name."""

    folder: Path
    inputs: int
    outputs: int
    activation: str
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
class ClassifierHead:
    """The checkpoint's own classifier or reward head: one logit a label."""


@dataclass(slots=True, frozen=True)
class TokenHead:
    """The logits of ``tokens`` after the last token: a generative reranker's "yes" and "no"."""

    tokens: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class PoolingSpec:
    """How hidden states become a vector of ``dimensions`` numbers."""

    head: EmbeddingHead | ClassifierHead | TokenHead
    dimensions: int
