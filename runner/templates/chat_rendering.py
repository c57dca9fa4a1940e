"""Renders messages through a chat template as transformers does. A template is a program, often one that came with a model.

What it may cost is counted (``metered_sandbox.py``); where that is too much or unknown, a process with limits renders. Knows no
tokens.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

from jinja2 import Template

from ..core.errors import RowError
from .jinja_sandbox import require_characters
from .metered_sandbox import MeteredEnvironment
from .render_costs import WORDY, Unsure, pay, size_of
from .render_process import SECONDS, TooMuch, render_apart

Messages = list[dict[str, Any]]
Span = tuple[int, int]


def render_chat(template: str, messages: Messages, variables: Mapping[str, Any]) -> str:
    """Returns the chat's text. Raises RowError if the template refuses the messages, or takes too much memory or time."""
    return _rendered(template, messages, variables, marks=False)[0]


def render_turns(template: str, messages: Messages, variables: Mapping[str, Any]) -> tuple[str, tuple[Span, ...]]:
    """Returns the chat's text, and the spans of the assistant's turns in it without empty ones. Raises as ``render_chat``."""
    text, spans = _rendered(template, messages, variables, marks=True)
    return text, tuple((start, end) for start, end in spans if end > start)


def chat_within(template: str, messages: Messages, variables: Mapping[str, Any], seconds: float) -> str:
    """Returns the chat's text. Raises TooMuch after so many seconds or too much memory, and any error of the template."""
    return _bounded(template, messages, variables, False, seconds)[0]


def _rendered(template: str, messages: Messages, variables: Mapping[str, Any], marks: bool) -> tuple[str, list[Span]]:
    """Returns text and spans. Where the template refuses the messages, other forms of them are tried."""
    try:
        return _tried(template, messages, variables, marks)
    except RowError:
        for form in _other_forms(messages):
            with suppress(RowError):
                return _tried(template, form, variables, marks)
        raise


def _other_forms(messages: Messages) -> Iterator[Messages]:
    """Yields forms that a few templates want: a text for each content, arguments of calls as JSON text alone, and both."""
    forms = [messages]
    if (with_texts := _without_null_contents(messages)) != messages:
        forms.append(with_texts)
        yield with_texts
    for form in forms:
        if (as_text := [_arguments_as_text(message) for message in form]) != form:
            yield as_text


def _without_null_contents(messages: Messages) -> Messages:
    return [{**message, "content": ""} if message.get("content", "") is None else message for message in messages]


def _arguments_as_text(message: dict[str, Any]) -> dict[str, Any]:
    def as_text(call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or isinstance(function.get("arguments"), str):
            return call
        return {**call, "function": {**function, "arguments": json.dumps(function.get("arguments"), ensure_ascii=False)}}

    calls = message.get("tool_calls")
    return {**message, "tool_calls": [as_text(call) for call in calls]} if isinstance(calls, list) else message


def with_arguments(call: Any) -> Any:
    """Returns a call with its arguments as a mapping where they are JSON text of one, as OpenAI writes them."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
        with suppress(ValueError, RecursionError):
            if isinstance(arguments := json.loads(text), dict):
                return {**call, "function": {**function, "arguments": arguments}}
    return call


def _tried(template: str, messages: Messages, variables: Mapping[str, Any], marks: bool) -> tuple[str, list[Span]]:
    try:
        found = _bounded(template, messages, variables, marks, SECONDS)
        require_characters(found[0])
        return found
    except TooMuch as error:
        raise RowError("template", f"the chat template {error.on('these messages')}") from error
    except Exception as error:  # templates raise what they like
        raise RowError("template", f"the chat template refuses the messages: {error}") from error


def _bounded(template: str, messages: Messages, variables: Mapping[str, Any], marks: bool, seconds: float) -> tuple[str, list[Span]]:
    without_nulls = [{name: value for name, value in message.items() if value is not None} for message in messages]
    try:
        texts, spans = _metered_render()([without_nulls], chat_template=template, return_assistant_tokens_mask=marks, **variables)
    except Unsure:
        arguments = {"template": template, "messages": without_nulls, "variables": dict(variables), "marks": marks}
        text, found = render_apart("chat", arguments, seconds)
        return text, [(start, end) for start, end in found]
    return str(texts[0]), spans[0] if marks else []


def unmetered_chat(template: str, messages: Messages, variables: Mapping[str, Any], marks: bool) -> tuple[str, list[Span]]:
    """Returns the text and spans without any limit, for a process that has limits."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, spans = render_jinja_template([messages], chat_template=template, return_assistant_tokens_mask=marks, **variables)
    return str(texts[0]), spans[0] if marks else []  # pyright: ignore[reportReturnType] - it is annotated as a str


@cache
def _metered_render() -> Callable[..., tuple[list[str], list[Any]]]:
    """Returns transformers' function that renders chats, with our sandbox in place of its own."""
    from transformers.utils import chat_template_utils

    theirs = chat_template_utils.render_jinja_template
    names = {**vars(chat_template_utils), "_compile_jinja_template": _metered_template}
    render = FunctionType(theirs.__code__, names, argdefs=theirs.__defaults__)
    render.__kwdefaults__ = theirs.__kwdefaults__
    return render


def _metered_template(template: str) -> Template:
    compiled = _compiled(template)
    if compiled is None:
        raise Unsure("the template has parts of unknown cost")
    return compiled


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template | None:
    from transformers.utils import chat_template_utils

    compile_template: Callable[[str], Template] | None = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compile_template is None:  # another version of transformers: a process with limits renders
        return None
    theirs = compile_template("").environment
    ours = MeteredEnvironment(
        trim_blocks=theirs.trim_blocks,
        lstrip_blocks=theirs.lstrip_blocks,
        extensions=[type(extension) for extension in theirs.extensions.values()],
        finalize=_paid_output,
    )
    ours.filters["tojson"] = theirs.filters["tojson"]
    ours.globals.update(theirs.globals)
    ours.meter_names()
    try:
        return ours.from_string(template)
    except Unsure:
        return None


def _paid_output(value: Any) -> Any:
    if not isinstance(value, str):
        pay(WORDY * size_of(value))
    return value
