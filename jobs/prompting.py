"""A row's prompt as tokens, for every job that has one: raw text, or messages through the chat template."""

from ..configs.errors import ConfigError
from ..runner.job import Parts
from ..runner.prompts import Rendered, Text
from ..runner.records import Prompt
from ..runner.tokenizer import Tokenizer


def encode_prompt(rendered: Rendered, tokenizer: Tokenizer) -> Prompt:
    """The prompt's text, token ids and offsets. Raises RowError where the chat template refuses the messages."""
    if isinstance(rendered, Text):
        return tokenizer.encode(rendered.text)
    return tokenizer.encode_chat(rendered.messages, rendered.prefill or "")


def require_chat_template(parts: Parts) -> None:
    """Raises ConfigError where messages are to be rendered and the tokenizer has no chat template."""
    sources = parts.config.prompt.sources
    if sources and sources != ["text"] and not parts.tokenizer.has_chat_template:
        cure = "set prompt.chat_template, or use prompt.text for a base model"
        raise ConfigError(f"prompt: the model's tokenizer has no chat template; {cure}")
