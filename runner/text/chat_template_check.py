"""Tries a chat template once before rows depend on it. A template is a program, often one that came with a model.

transformers runs it in Jinja's sandbox: it reaches no files, modules or internals of Python objects, but it may compute. This check
refuses a template that never ends, takes all memory, or blocks signals. One that does so on some rows costs only these rows.
"""

import json
import re
from pathlib import Path
from typing import Any

from ...configs.errors import BulkError, ConfigError
from ...configs.schema import names_a_file
from ..core.errors import ModelError, first_line
from ..templates.chat_rendering import chat_within
from ..templates.render_process import SECONDS, TooMuch

_MESSAGES = [{"role": "user", "content": "Hi"}]
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # transformers' own tag, which plain Jinja does not know


def try_template(hf: Any, configured: str | None, seconds: float = SECONDS) -> None:
    """Renders one message with the template ``configured`` in the config, else with that of the Hugging Face tokenizer ``hf``, if any.

    Raises ConfigError if the configured template can't be parsed. Raises ConfigError (configured) or ModelError (the model's own) if a
    template raises numbers to powers, takes more than ``seconds``, or too much memory. Other errors are left to the rows.
    """
    from jinja2 import TemplateSyntaxError

    template = configured if configured is not None else _own(hf)
    if template is None:
        return
    if has_powers(template):
        raise _refusal(configured, "raises numbers to powers (**), which can take for ever and can not be interrupted")
    if not uses_jinja(hf):
        return
    try:
        chat_within(template, _MESSAGES, {"add_generation_prompt": True, **hf.special_tokens_map}, seconds)
    except TooMuch as error:
        raise _refusal(configured, error.on("one short message")) from None
    except TemplateSyntaxError as error:
        if configured is not None:
            raise ConfigError(f"prompt.chat_template, line {error.lineno}: the template cannot be parsed: {error.message}") from None
    except Exception:  # it may need what rows have: they tell
        return


def uses_jinja(hf: Any) -> bool:
    """Returns True when a Hugging Face tokenizer renders chats by a Jinja template, False where it has code of its own."""
    from transformers import PreTrainedTokenizerBase

    return type(hf).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template


def has_powers(template: str) -> bool:
    """Returns True when a template uses ``**``: 10**10**10 holds the interpreter, so that not even a signal gets through."""
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        tree = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION.sub("", template))
    except (TemplateSyntaxError, RecursionError):
        return False  # it can't run
    return tree.find(nodes.Pow) is not None


def _own(hf: Any) -> str | None:
    try:
        return hf.get_chat_template() if hf.chat_template is not None else None
    except ValueError:  # several templates, but none for plain chats
        return None


def _refusal(configured: str | None, reason: str) -> BulkError:
    if configured is not None:
        return ConfigError(f"prompt.chat_template: the template {reason}; write it without")
    return ModelError(
        f"model.path: the chat template that comes with the model {reason}; if you need it, set prompt.chat_template to another"
    )


def read_template(chat_template: str | None) -> str | None:
    """Returns the chat template of the config, read from its file if the config gives a path. Raises ConfigError."""
    if chat_template is None or not names_a_file(chat_template):
        return chat_template
    try:
        return Path(chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt.chat_template: {chat_template} is neither a readable file nor a template ({error})") from error


def with_processor_template(hf: Any, folder: Path) -> Any:
    """Returns a Hugging Face tokenizer with the chat template of chat_template.json, where it has none of its own.

    Older vision models keep theirs in that file, which is their processor's. Raises ModelError where it cannot be read.
    """
    path = folder / "chat_template.json"
    if hf.chat_template is not None or not path.is_file():
        return hf
    try:
        hf.chat_template = str(json.loads(path.read_bytes())["chat_template"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"model.path: {path} holds no chat template: {first_line(error)}; fetch the model anew") from error
    return hf
