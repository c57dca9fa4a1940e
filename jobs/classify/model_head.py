"""Says which head reads a classification's logits: the checkpoint's own, or two tokens that the config names.

Also the longest input that the model takes. Reads settings and the headers of weights, loads nothing.
"""

from dataclasses import dataclass

from ...configs.classify import ClassifySettings
from ...configs.errors import ConfigError
from ...runner.encoders.registry import encoder_class
from ...runner.models.checkpoint import Checkpoint
from ...runner.pooling.checkpoint_head import checkpoint_head
from ...runner.pooling.sentence_folder import SentenceFolder
from ...runner.pooling.spec import PoolingSpec, TokenHead
from ...runner.text.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class ModelHead:
    """A head as a job uses it.

    labels: names of the classes, as ``ScoreRule`` has them. words: the true and the false token of a generative head as texts, None for
    other heads. said: the activation that the model's files name.
    """

    spec: PoolingSpec
    labels: tuple[str, ...]
    words: tuple[str, str] | None = None
    said: str | None = None


def model_head(settings: ClassifySettings, checkpoint: Checkpoint, tokenizer: Tokenizer) -> ModelHead:
    """Finds the head. Raises ConfigError for a token that is none, ModelError for a checkpoint without a head that is served."""
    if settings.true_token is not None:
        true = _token(tokenizer, settings.true_token, "true_token")
        false = None if settings.false_token is None else _token(tokenizer, settings.false_token, "false_token")
        words = (settings.true_token, settings.false_token or "")
        labels = () if false is None else (words[1], words[0])
        return ModelHead(PoolingSpec(TokenHead(true, false), 1), labels, words)
    found = checkpoint_head(checkpoint.folder, checkpoint.config, checkpoint.modules_folder)
    if isinstance(found.head, TokenHead):
        ids = [found.head.yes] + ([] if found.head.no is None else [found.head.no])
        texts = [tokenizer.token_bytes(each).decode("utf-8", "replace").strip() for each in ids]
        return ModelHead(found.spec, (), (texts[0], texts[-1]), found.activation)
    return ModelHead(found.spec, found.label_names if len(found.label_names) > 1 else (), None, found.activation)


def most_tokens(setting: int | None, checkpoint: Checkpoint, folder: SentenceFolder) -> int | None:
    """Returns the most tokens of an input: the setting's, else what the model's files say; None where they say nothing.

    Raises ConfigError where the setting is more than the model has positions.
    """
    encoder = encoder_class(checkpoint.config)
    positions = checkpoint.context if encoder is None else encoder.max_positions(checkpoint.config)
    if setting is None:
        return min((limit for limit in (folder.max_length, positions) if limit is not None), default=None)
    if positions is not None and setting > positions:
        raise ConfigError(f"classify.max_length: found {setting}; expected at most {positions}, the model's positions; give that or less")
    return setting


def require_token_room(classify: ClassifySettings, tokenizer: Tokenizer) -> None:
    """Raises ConfigError for a ``max_length`` that special tokens fill: tokenizers then cut nothing, or all of a text."""
    pair = classify.query is not None
    around, texts = tokenizer.hf.num_special_tokens_to_add(pair=pair), 2 if pair else 1
    if classify.max_length is not None and classify.max_length < around + texts:
        expected = (
            f"expected at least {around + texts}, since the tokenizer puts {around} special tokens around each {'pair' if pair else 'text'}"
        )
        raise ConfigError(f"classify.max_length: found {classify.max_length}; {expected}")


def _token(tokenizer: Tokenizer, text: str, name: str) -> int:
    ids = tokenizer.encode_text(text).ids.tolist()
    if len(ids) != 1:
        pieces = ", ".join(repr(tokenizer.token_bytes(each).decode("utf-8", "replace")) for each in ids)
        how = f"{len(ids)} tokens of this model: {pieces}" if ids else "no token of this model"
        raise ConfigError(
            f"classify.{name}: found {text!r}, which is {how}; expected one token; try another spelling, such as Yes, or a space in front"
        )
    return ids[0]
