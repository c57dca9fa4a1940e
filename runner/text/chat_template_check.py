"""Tries a chat template once before rows depend on it. A template is a program, often one that came with a model.

transformers runs it in Jinja's sandbox: it reaches no files, modules or internals of Python objects, but it may compute. This check
refuses a template that never ends, or that blocks signals. The heartbeat handles one that is slow on some rows only, and the system
one that takes too much memory: neither loses finished rows.
"""

import re
import threading
from collections.abc import Callable
from typing import Any

from ...configs.errors import BulkError, ConfigError
from ..core.errors import ModelError

SECONDS = 10.0  # for one message; templates take a millisecond
_MESSAGES = [{"role": "user", "content": "Hi"}]
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # transformers' own tag, which plain Jinja does not know


def try_template(hf: Any, configured: str | None, seconds: float = SECONDS) -> None:
    """Renders one message with the template ``configured`` in the config, else with that of the Hugging Face tokenizer ``hf``, if any.

    Raises ConfigError if the configured template can't be parsed. Raises ConfigError (configured) or ModelError (the model's own) if a
    template raises numbers to powers, or takes more than ``seconds``. Other errors are left to the rows.
    """
    template = configured if configured is not None else _own(hf)
    if template is None:
        return
    if has_powers(template):
        raise _refusal(configured, "raises numbers to powers (**), which can take for ever and can not be interrupted")
    errors: list[BaseException] = []

    def render() -> None:
        try:
            hf.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True, chat_template=template)
        except Exception as error:
            errors.append(error)

    if not _ends(render, seconds):
        raise _refusal(configured, f"is not done with one short message after {seconds:g} seconds")
    _refuse_unparsable(configured, errors)


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


def _ends(work: Callable[[], None], seconds: float) -> bool:
    """Runs ``work`` in a daemon thread. Returns True when it ends in time."""
    thread = threading.Thread(target=work, name="chat template", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _refuse_unparsable(configured: str | None, errors: list[BaseException]) -> None:
    from jinja2 import TemplateSyntaxError

    for error in errors:
        if configured is not None and isinstance(error, TemplateSyntaxError):
            raise ConfigError(f"prompt.chat_template, line {error.lineno}: the template cannot be parsed: {error.message}") from None


def _refusal(configured: str | None, reason: str) -> BulkError:
    if configured is not None:
        return ConfigError(f"prompt.chat_template: the template {reason}; write it without")
    return ModelError(
        f"model.path: the chat template that comes with the model {reason}; if you need it, set prompt.chat_template to another"
    )
