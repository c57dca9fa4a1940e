"""How a checkpoint writes calls of tools: by its response template, by a parser of mlx-lm, or by a template of a small table.

Holds no parser of its own.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

from ...configs.errors import ConfigError
from ...configs.fields import nearest
from ..text.tokenizer import Tokenizer
from .response_templates import TABLE, ResponseTemplate, known_template
from .sections import Marks, literal

log = logging.getLogger("mlx_bulk")

_OWN = "response_template"

Calls = Callable[[str, str, list[Any]], list[Any]]


@dataclass(slots=True, frozen=True)
class ToolFormat:
    """How calls are written. marks: of calls, and of the other sections that the format itself tells apart.

    begins: the string that begins a call, where that is one and not a pattern. calls: reads a closed section, given with its marks and
    without them, and the row's tools; it may raise anything.
    """

    name: str
    marks: list[Marks]
    calls: Calls
    begins: str | None = None
    ends: str | None = None


def find_tool_format(setting: str, tokenizer: Tokenizer) -> ToolFormat | None:
    """Returns the format that ``tools.parser`` names, or for auto that of the checkpoint; None where nobody knows it.

    Raises ConfigError for a name that no parser has, or a response template that transformers cannot read.
    """
    if setting == "none":
        return None
    if setting == "auto":
        return _of_checkpoint(tokenizer)
    own: dict[str, Any] = getattr(tokenizer.hf, _OWN, None) or {}
    names = [*([_OWN] if own else []), *TABLE, *_parsers()]
    if setting not in names:
        near = nearest(setting, names)
        known = ", ".join(["auto", "none", *names])
        raise ConfigError(f"tools.parser: found {setting}; {f'did you mean {near}? ' if near else ''}expected one of {known}")
    if setting == _OWN:
        return _by_template(_OWN, own)
    return _by_template(setting, TABLE[setting][1]) if setting in TABLE else _by_parser(setting)


def _of_checkpoint(tokenizer: Tokenizer) -> ToolFormat | None:
    if not tokenizer.template_text:
        return None
    own: dict[str, Any] = getattr(tokenizer.hf, _OWN, None) or {}
    if "tool_calls" in own.get("fields", {}):
        try:
            return _by_template(_OWN, own)
        except ConfigError as error:  # it may be made for another version of transformers, and this run may need no calls
            log.warning("%s", error)
    if name := _inferred(tokenizer):
        return _by_parser(name)
    known = known_template(tokenizer.template_text)
    return _by_template(known, TABLE[known][1]) if known else None


def _inferred(tokenizer: Tokenizer) -> str | None:
    """Returns the name of mlx-lm's parser for the chat template in use."""
    from mlx_lm import tokenizer_utils

    named = getattr(tokenizer.hf, "init_kwargs", {}).get("tool_parser_type") if tokenizer.chat_template is None else None
    infer: Callable[[Any], str | None] | None = getattr(tokenizer_utils, "_infer_tool_parser", None)  # another version may have none
    template = SimpleNamespace(chat_template=tokenizer.template_text, get_vocab=tokenizer.hf.get_vocab)
    return named or (None if infer is None else infer(template))


def _parsers() -> list[str]:
    import mlx_lm.tool_parsers as parsers

    return sorted(module.name for module in iter_modules(parsers.__path__))


def _by_parser(name: str) -> ToolFormat:
    parser = import_module(f"mlx_lm.tool_parsers.{name}")

    def calls(section: str, inner: str, tools: list[Any]) -> list[Any]:
        found = parser.parse_tool_call(inner, tools)
        return found if isinstance(found, list) else [found]

    begins, ends = parser.tool_call_start, parser.tool_call_end
    return ToolFormat(name, [literal("tools", begins, ends)], calls, begins, ends or None)


def _by_template(name: str, spec: dict[str, Any]) -> ToolFormat:
    template = ResponseTemplate(spec)
    try:
        marks = template.marks
    except Exception as error:  # whatever is wrong with it, it came with the checkpoint
        cure = "set tools.parser to another parser, or to none"
        raise ConfigError(f"tools.parser: the response template of the model cannot be read: {error}; {cure}") from error
    field = spec["fields"].get("tool_calls", {})
    begins, ends = (value if isinstance(value := field.get(key), str) else None for key in ("open", "close"))
    return ToolFormat(name, marks, template.calls, begins, ends)
