"""A chat template is a program, often one that came with a model: it is tried once before rows depend on it.

transformers runs it in Jinja's sandbox: it reaches no file, no module and no Python object's insides, but it may compute. What would
make the process deaf or never end on any chat is refused here. One that is slow on some rows alone is left to the heartbeat, and one that
takes too much memory to the system: neither costs finished rows.
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


def try_template(hf: Any, given: str | None, seconds: float = SECONDS) -> None:
    """Renders the chat template ``given`` in the config, else the one of the Hugging Face tokenizer ``hf`` if it has one.

    Raises ConfigError where the given one cannot be parsed, and ConfigError (given) or ModelError (the model's own) where a template
    raises to powers, or is not done after so many seconds. What else it makes of messages is for the rows to show.
    """
    template = given if given is not None else _own(hf)
    if template is None:
        return
    if has_powers(template):
        raise _refusal(given, "raises numbers to powers (**), which can take for ever and can not be interrupted")
    found: list[BaseException] = []

    def render() -> None:
        try:
            hf.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True, chat_template=template)
        except Exception as error:
            found.append(error)

    if not _ends(render, seconds):
        raise _refusal(given, f"is not done with one short message after {seconds:g} seconds")
    _refuse_unparsable(given, found)


def has_powers(template: str) -> bool:
    """Whether a template uses ``**``: 10**10**10 holds the interpreter, so that not even a signal gets through."""
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        tree = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION.sub("", template))
    except (TemplateSyntaxError, RecursionError):
        return False  # it cannot be run
    return tree.find(nodes.Pow) is not None


def _own(hf: Any) -> str | None:
    try:
        return hf.get_chat_template() if hf.chat_template is not None else None
    except ValueError:  # several of them, and none for plain chats
        return None


def _ends(work: Callable[[], None], seconds: float) -> bool:
    """Runs ``work`` in a thread that the process does not wait for; whether it is done in time."""
    thread = threading.Thread(target=work, name="chat template", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _refuse_unparsable(given: str | None, found: list[BaseException]) -> None:
    from jinja2 import TemplateSyntaxError

    for error in found:
        if given is not None and isinstance(error, TemplateSyntaxError):
            raise ConfigError(f"prompt.chat_template, line {error.lineno}: the template cannot be parsed: {error.message}") from None


def _refusal(given: str | None, reason: str) -> BulkError:
    if given is not None:
        return ConfigError(f"prompt.chat_template: the template {reason}; write it without")
    return ModelError(
        f"model.path: the chat template that comes with the model {reason}; if you need it, set prompt.chat_template to another"
    )
