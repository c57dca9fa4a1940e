"""Finds a reward model: its checkpoint, its head and its tokenizer, before any weights are loaded."""

from dataclasses import dataclass

from ...configs.rewards import RewardConfig
from ...configs.schema import ModelConfig
from ...configs.visible import visible
from ..core.errors import ModelError
from ..encoders.registry import encoder_class
from ..pooling.checkpoint_head import checkpoint_head
from ..pooling.spec import PoolingSpec
from ..text import tokenizer as tokenizers
from ..text.tokenizer import Tokenizer
from . import checkpoint as checkpoints
from .checkpoint import Checkpoint

_IDENTITY = ("model.weights", "model.tokenizer", "model.chat_template", "model.modules")


@dataclass(slots=True, frozen=True)
class RewardModel:
    """A model that rates completions. label: its field in the records. key: its place in the config. pooling: gives one number a text."""

    label: str
    key: str
    config: ModelConfig
    checkpoint: Checkpoint
    pooling: PoolingSpec
    tokenizer: Tokenizer

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a text; None where its config does not say."""
        encoder = encoder_class(self.checkpoint.config)
        return self.checkpoint.context if encoder is None else encoder.max_positions(self.checkpoint.config)

    def fingerprints(self) -> dict[str, str]:
        """Returns what it computes by, as a part of a run's identity: the sha256 of weights, tokenizer, chat template and modules."""
        prints = checkpoints.checkpoint_fingerprints(self.checkpoint) | checkpoints.module_fingerprints(self.checkpoint)
        return {f"rewards.{self.label}.{name.removeprefix('model.')}": prints[name] for name in _IDENTITY}


def find_reward_model(reward: RewardConfig, key: str, chats: bool) -> RewardModel:
    """Finds the model of a reward. ``key`` is its place in the config. chats: it is to read chats.

    Raises ModelError where it is not there, gives no single number, or has no chat template for the chats.
    """
    assert reward.model is not None
    config, checkpoint = reward.model, checkpoints.find_checkpoint(reward.model, key)
    try:
        head = checkpoint_head(checkpoint.folder, checkpoint.config, checkpoint.modules_folder)
        tokenizer = tokenizers.load_tokenizer(checkpoint.folder, None, {}, config.trust_remote_code)
    except ModelError as error:
        raise ModelError(str(error).replace("model.path:", f"{key}.path:", 1)) from error
    if (labels := head.spec.dimensions) != 1:
        named = visible(", ".join(head.label_names[:4])) + (", …" if labels > 4 else "")
        raise ModelError(
            f"{key}.path: {checkpoint.folder} gives {labels} numbers a text ({named}); expected one, the reward; use a reward model, "
            "which is a sequence classifier with one label"
        )
    if chats and not tokenizer.has_chat_template:
        cure = "put its chat_template.jinja beside its weights, or use prompt.text"
        raise ModelError(f"{key}.path: {checkpoint.folder} has no chat template, and the prompts are chats; {cure}")
    return RewardModel(reward.label, key, config, checkpoint, head.spec, tokenizer)
