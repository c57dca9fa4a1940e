"""Finds the reference model's checkpoint, and checks that its tokens are the model's own before either is loaded."""

from ...configs.schema import ModelConfig
from ..core.errors import ModelError
from ..text import tokenizer as tokenizers
from ..text.tokenizer import Tokenizer
from . import checkpoint as checkpoints
from .checkpoint import Checkpoint


def find_reference(config: ModelConfig, vocabulary: int, tokenizer: Tokenizer, key: str = "score.reference") -> Checkpoint:
    """Finds the reference for a model of ``vocabulary`` ids with ``tokenizer``. ``key`` is its place in the config.

    Raises ModelError where its tokens are others.
    """
    checkpoint = checkpoints.find_checkpoint(config, key)
    other = tokenizers.load_tokenizer(checkpoint.folder, None, {}, config.trust_remote_code)
    if difference := tokenizer.difference(other):
        raise ModelError(f"{key}: the tokenizer of {checkpoint.folder} is another than the model's: {difference}")
    _require_same_tokens(vocabulary, vocabulary_of(checkpoint, tokenizer), tokenizer, key)
    return checkpoint


def vocabulary_of(checkpoint: Checkpoint, tokenizer: Tokenizer) -> int:
    """Returns the width of the logits by config.json, or else the tokenizer's size."""
    text = checkpoint.config | (checkpoint.config.get("text_config") or {})
    return int(text.get("vocab_size") or tokenizer.size)


def _require_same_tokens(ours: int, theirs: int, tokenizer: Tokenizer, key: str) -> None:
    """Raises ModelError where one of two vocabularies, given by their widths, lacks ids of the tokenizer that the other has.

    Ids beyond the tokenizer's are padding, which a divergence leaves out.
    """
    if ours != theirs and min(ours, theirs) < tokenizer.size:
        raise ModelError(
            f"{key}: found a vocabulary of {theirs} ids, the model's has {ours}, the tokenizer {tokenizer.size}; "
            "expected the same, or that both hold all of the tokenizer's; use a reference with this model's vocabulary"
        )
