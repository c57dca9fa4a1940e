"""Encodes a row's prompt as tokens, for every job with prompts: raw text, or messages through the chat template."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...configs.errors import ConfigError
from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.requests import Prompt
from ...runner.images.row_pictures import RowPictures
from ...runner.pipeline.job import Parts
from ...runner.templates.prompt_templates import AnyPrompt, PromptIds, Text
from ...runner.text.tokenizer import NOTHING, Tokenizer


def encode_prompt(rendered: AnyPrompt, parts: Parts, variables: Mapping[str, Any] = NOTHING, pictures: RowPictures | None = None) -> Prompt:
    """Returns the prompt's text, token ids and offsets. Raises RowError where the chat template refuses the messages.

    variables: the chat template's, for this prompt alone. pictures: encodes a prompt in which some may stand; None for text alone.
    """
    tokenizer = parts.tokenizer
    if isinstance(rendered, Text):
        return tokenizer.encode(rendered.text) if pictures is None else pictures.text_of(rendered).prompt()
    if isinstance(rendered, PromptIds):
        ids = np.array(rendered.ids, np.int32)
        require_vocabulary(ids, tokenizer.size, "the prompt")
        return Prompt(tokenizer.decode(ids), ids, tokenizer.offsets(ids))
    if pictures is not None:
        return pictures.text_of(rendered, variables).prompt()
    return tokenizer.encode_chat(rendered.messages, rendered.prefill or "", variables)


def require_chat_template(parts: Parts) -> None:
    """Raises ConfigError where the config has messages and the tokenizer no chat template."""
    sources = parts.config.prompt.sources
    if sources and sources != ["text"] and not parts.tokenizer.has_chat_template:
        cure = "set prompt.chat_template, or use prompt.text for a base model"
        raise ConfigError(f"prompt: the model's tokenizer has no chat template; {cure}")


def require_shown_tools(tokenizer: Tokenizer) -> None:
    """Raises ConfigError where the chat template has no place for tools."""
    if not shows_tools(tokenizer):
        cure = "set prompt.chat_template to one that shows them, take a model made for tools, or remove the tools"
        raise ConfigError(f"prompt.tools: the chat template ignores tools: a prompt has the same text with them and without; {cure}")


def shows_tools(tokenizer: Tokenizer) -> bool:
    """Returns False where the chat template has no place for tools: a short chat has the same text with them and without."""
    chat = [{"role": "user", "content": "Hi"}]
    function = {"name": "look_up", "description": "Looks a word up.", "parameters": {"type": "object", "properties": {}}}
    try:
        return tokenizer.chat_text(chat, "", {"tools": [{"type": "function", "function": function}]}) != tokenizer.chat_text(chat, "")
    except RowError:  # a template may need what rows have: they tell
        return True


def require_vocabulary(ids: Ids, vocabulary: int, where: str) -> None:
    """Raises RowError for a token id beyond the model's ``vocabulary``; the message begins with ``where``."""
    if len(ids) and (largest := np.maximum.reduce(ids)) >= vocabulary:
        raise RowError("tokenize", f"{where} holds the token id {largest}, which is not below {vocabulary}, the model's vocabulary")


def require_top(parts: Parts) -> None:
    """Raises ConfigError where the config asks for more alternatives than the vocabulary has tokens."""
    top = parts.config.logprobs.top
    if top > parts.vocabulary:
        raise ConfigError(f"logprobs.top: found {top}; expected at most {parts.vocabulary}, the model's vocabulary")
